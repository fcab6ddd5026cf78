"""Screens: the overview, the question on leaving, and texts over it."""
