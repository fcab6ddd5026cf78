"""Starting a run, watching it from outside, and coming back to it."""
