"""The training loop: steps, losses, schedules, checkpoints, processes."""
