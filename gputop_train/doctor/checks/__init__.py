"""Facts to findings: one module for each subject, pure functions."""
