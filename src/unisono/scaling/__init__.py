"""How training scales: what was measured on 1..N ranks, and a model of what it costs."""
