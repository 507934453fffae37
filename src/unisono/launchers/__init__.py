"""Start processes: what to start (spec), a supervisor for this host (local), what runs inside (child).

The room is called launchers because ``unisono.launch`` is a function. No file here imports torch.
"""
