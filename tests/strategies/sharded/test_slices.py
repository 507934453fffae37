"""Slices of rows: one rank has everything; what is not cut stays as it is."""

import torch

from unisono.collectives.loopback import LoopbackTransport
from unisono.strategies.sharded.slices import local_of, sliced_like, whole_of


def test_plain_tensors_stay_as_they_are():
    """Whatever the world: only sliced tensors are put together or cut (`test_fsdp` does that with real ones)."""
    plain, transport = torch.arange(6.0), LoopbackTransport()
    assert local_of(plain) is plain
    assert whole_of(plain, transport) is plain
    assert sliced_like(plain, None, transport) is plain
    assert sliced_like(plain, torch.zeros(6), transport) is plain
