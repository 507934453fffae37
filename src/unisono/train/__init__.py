"""The step, the run and the trainer: the only room where data, strategy, ledger and checkpoints meet."""
