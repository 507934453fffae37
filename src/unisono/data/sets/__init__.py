"""Data sets: from files to samples that a loader can fetch by index."""
