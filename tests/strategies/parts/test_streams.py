"""Random streams as bytes: put back, the same numbers are drawn."""

import random

import numpy as np
import pytest
import torch

from unisono.determinism.switches import set_generators
from unisono.strategies.parts.streams import capture, restore

CPU = torch.device("cpu")


def draw():
    """Draw from every stream, with the halves of pairs of normal numbers that are kept for the next call."""
    return [torch.rand(3).tolist(), torch.randn(()).item(), np.random.rand(2).tolist(), np.random.randn(),
            random.random(), random.gauss(0, 1)]  # fmt: skip


@pytest.mark.parametrize("before", [0, 1, 2])
def test_what_is_drawn_afterwards_is_the_same(before):
    """From any place in the streams."""
    set_generators(7)
    for _ in range(before):
        draw()
    streams = capture(CPU)
    first = draw()
    assert capture(CPU) != streams
    assert draw() != first
    restore(streams, CPU)
    assert capture(CPU) == streams
    assert draw() == first


@pytest.mark.parametrize("number", [0, 2, 4])
def test_every_stream_counts(number):
    """One number from torch's, NumPy's or Python's generator is seen."""
    set_generators(3)
    streams = capture(CPU)
    (lambda: torch.rand(1), None, lambda: np.random.rand(), None, lambda: random.random())[number]()
    assert capture(CPU) != streams
