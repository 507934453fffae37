"""Small numbers of a device: all of them with one wait for each device, bit for bit."""

import math

import pytest
import torch

import device_waits
from forks import run_forked
from reference import bits
from unisono.determinism.device_reads import DeviceReads, flaws_of


def test_all_kinds_come_together():
    """Flags, losses, counters, complex numbers, nothing at all: from two devices and the CPU, with two waits."""
    waits, arrived = run_forked(device_waits.mixed, 1)[0]
    assert waits == 2
    assert arrived == [[True] * 18] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_flaw_is_found_and_nothing_else_is_touched(dtype, value):
    """One element of many tensors; largest numbers, zeros and absent gradients are none."""
    most = torch.finfo(dtype).max
    extremes = torch.tensor([most, -most, -0.0, 1e-30], dtype=torch.float64).to(dtype)
    grads = [extremes, None, torch.zeros(0, dtype=dtype), torch.ones(3).to(dtype)]
    before, reads = [None if grad is None else bits(grad) for grad in grads], DeviceReads()
    assert [bool(flaw) for flaw in flaws_of(grads, reads)] == [False]
    assert [None if grad is None else bits(grad) for grad in grads] == before
    grads[3][1] = value
    for _ in range(70):  # more than are made at a time
        assert [bool(flaw) for flaw in flaws_of(grads, reads)] == [True]
    grads[3][1] = 0
    assert [bool(flaw) for flaw in flaws_of(grads, reads)] == [False]


def test_flaws_are_found_whatever_the_default_dtype():
    """Torch's kernel takes float32 alone for what it writes to."""
    torch.set_default_dtype(torch.float64)
    try:
        grads = [torch.ones(3), torch.ones(2, dtype=torch.float32)]
        assert [bool(flaw) for flaw in flaws_of(grads, DeviceReads())] == [False, False]
    finally:
        torch.set_default_dtype(torch.float32)
