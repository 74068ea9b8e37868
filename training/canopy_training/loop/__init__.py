"""One training run: schedule, checkpoints, progress."""
