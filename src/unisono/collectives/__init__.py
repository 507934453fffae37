"""How bytes move between ranks, and in which order numbers are added.

`tree` is pure and fixes the order of every sum. `transport` says what carries bytes: `loopback`, `shm/` and
`process_groups/` do. `reduce` joins the two: the owner-computes exchange.
"""
