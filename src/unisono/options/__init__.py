"""Options: what kind of number or word one takes, with its unit, bounds and message."""
