"""The store of one run: a bounded SQLite file that one process writes and anyone may read."""
