"""Disturb a run on purpose and see whether its result stays the same: what comes when (schedule), doing it (player)."""
