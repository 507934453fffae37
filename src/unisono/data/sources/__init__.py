"""Data that does not fit into memory: `shards` (files with an index), `stream` (items in order), and their parts."""
