"""A key-value store over TCP for launchers and ranks that share a secret: nobody else gets a byte in.

The room below the launchers; no torch, no pickle. Values are bytes; what unisono itself puts in is JSON.
"""
