"""Shared memory between the ranks of one host: the board they meet at, the transport and the backend over it."""
