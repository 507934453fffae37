"""Watching workers: who is silent, who failed first, when to start again, and that nothing stays behind."""
