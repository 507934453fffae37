"""How bytes move between ranks, and in which order numbers are added.

`tree` is pure and fixes the order of every sum. `transport` says what a carrier of bytes must do, `loopback` and
`process_group` are carriers, `reduce` joins the two: the owner-computes exchange.
"""
