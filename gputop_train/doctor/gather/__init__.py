"""Facts about this machine and the script's interpreter. Reads only; nothing is made or changed."""
