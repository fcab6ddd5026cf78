"""``python -m gputop_train``."""

from gputop_train.cli import main

main()
