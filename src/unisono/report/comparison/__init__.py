"""Several runs beside each other: where they part, and a page's section about it."""
