"""Rows of all ranks arrive as they were, in rank order."""

import torch

from ranks import run_threads
from reference import bits
from unisono.collectives.rows import RowKind, gather_rows

CPU = torch.device("cpu")
KINDS = [
    RowKind("float32", [3], CPU),
    RowKind("bool", [], CPU),
    RowKind("complex64", [2, 2], CPU),
    RowKind("int64", [0], CPU),
]


def rows(rank, count):
    """Return a rank's rows of each kind."""
    generator = torch.Generator().manual_seed(rank)
    wide = torch.randn(count, 2, 2, dtype=torch.complex64, generator=generator)
    narrow = torch.tensor([float("nan"), -0.0, 1e-45]).expand(count, 3).contiguous()
    return [narrow, wide.real[:, 0, 0] > 0, wide, torch.zeros(count, 0, dtype=torch.int64)]


def test_unequal_numbers_of_rows():
    """Ranks with many rows, few and none: every bit arrives, of any dtype and shape."""
    counts = [3, 0, 5]
    expected = [bits(torch.cat(parts)) for parts in zip(*map(rows, range(3), counts), strict=True)]

    def program(transport):
        own = rows(transport.rank, counts[transport.rank])
        found = gather_rows(own, KINDS, counts, transport, is_flagged=False)
        assert [bits(tensor) for tensor in found] == expected
        assert [tensor.shape[1:] for tensor in found] == [(3,), (), (2, 2), (0,)]

    run_threads(program, 3)


def test_one_flagged_rank_is_heard_by_all():
    """No rank gets rows where one of them has none to send, whatever it holds."""

    def program(transport):
        own = rows(9, 50) if transport.rank == 1 else rows(transport.rank, 2)
        return gather_rows(own, KINDS, [2, 2, 2], transport, is_flagged=transport.rank == 1) is None

    assert run_threads(program, 3) == [True] * 3
