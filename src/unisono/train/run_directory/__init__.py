"""What a run keeps in its directory, and how a directory becomes this run's.

A checkpoint is saved in two layers. `run_progress` decides when: after a step that is due, at a stop, at the end, or
when the loop is left. It packs the state, with the facts of the step and the ledger's head. `checkpoints` writes it:
each rank copies its share and writes it in a thread; the keeper's thread syncs the ledger first, collects the shares
and commits (`unisono.checkpoint.store`: one rename between two syncs). `Checkpoints.settle` waits for it.

`record` opens the directory: JSON files (`files`), the lock (`lock`), the ledgers. `directories` finds out whether
hosts share it, `adoption` compares what lies there with this run, `handover` sends a state to hosts that lack it.
`open_runs` tells the runs of one process apart.
"""
