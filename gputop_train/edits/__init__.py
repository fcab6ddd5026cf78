"""Advice as changes of the user's files: what can be said as a diff, and ``gputop-train apply``."""
