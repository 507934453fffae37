"""A run directory while it grows: what `unisono watch` shows in a terminal and as a page."""
