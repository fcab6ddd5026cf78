"""Diagnosis: pure functions from one frozen window of a run to one verdict."""
