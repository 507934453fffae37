"""How training scales: what was measured on 1..N ranks, a model of what it costs, and a simulator that checks it."""
