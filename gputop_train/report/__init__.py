"""What was found, for people and for programs: the exit summary and the JSON report."""
