"""Tensors as bytes: what comes back has the same bits, on one rank or on all."""

import torch

from ranks import run_threads
from reference import bits
from unisono.strategies.parts.tensor_bytes import broadcast, from_bytes, to_bytes


def tensors(seed):
    """Some dtypes and layouts, one empty, one with a NaN."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(4, 3, generator=generator)
    values[0, 0] = float("nan")
    return [values.t(), torch.tensor(seed), torch.empty(0, 2), torch.tensor([seed > 1, True]), values.double()]


def test_the_same_bits_come_back():
    """Whatever the dtype and the layout; and other tensors differ before."""
    source, target = tensors(1), tensors(2)
    assert [bits(tensor) for tensor in source] != [bits(tensor) for tensor in target]
    from_bytes(to_bytes(source), target)
    assert [bits(tensor) for tensor in source] == [bits(tensor) for tensor in target]
    assert len(to_bytes([])) == 0


def test_one_rank_gives_to_all():
    """Every rank ends with what the root had, which keeps it."""

    def program(transport):
        mine = tensors(transport.rank)
        broadcast(mine, transport, 1)
        return [bits(tensor).hex() for tensor in mine]

    assert run_threads(program, 3) == [[bits(tensor).hex() for tensor in tensors(1)]] * 3
