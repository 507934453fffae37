"""A run directory: its files, its lock, its checkpoints, and whether a launch may go on with it."""
