"""Start processes: `spec` says what, `local` starts and restarts them on this host, `worker/` runs inside them.

The room is called launchers because ``unisono.launch`` is a function. No file here imports torch.
"""
