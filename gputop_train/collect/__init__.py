"""Readings of a run from outside: the probe's ring, the GPU driver, the machine."""
