"""Where a leg of a trial writes: mounts of its own, set up between its fork and its start."""
