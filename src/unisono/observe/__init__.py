"""What a run leaves to look at: the ledger (exact record of steps) and progress on the terminal."""
