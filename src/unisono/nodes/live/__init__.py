"""Workers of several hosts that go on without one that has died: what their launchers say to each other."""
