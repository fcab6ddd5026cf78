"""Widgets, one file each: a pure function from a snapshot to rows, and a thin class around it."""
