"""What stands between this machine and a watched run: facts, what they mean, and the remedy."""
