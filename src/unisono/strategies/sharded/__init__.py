"""Fully sharded training (torch's FSDP2) with the bits of `exact`."""
