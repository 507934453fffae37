"""A watched run: its state, its screen, its page."""
