"""Checkpoints: what is in one (format), and directories of them that survive a crash at any moment (store)."""
