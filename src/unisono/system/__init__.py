"""The machine and the operating system: files, directories, memory, devices, the heartbeat page, words (no torch)."""
