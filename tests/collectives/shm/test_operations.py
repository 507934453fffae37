"""The operations on tensors, between real processes over shared memory."""

import pytest
import torch

from collectives.operation_programs import DTYPES, OPERATIONS, cases, use_everything
from forks import run_forked
from ranks import once
from unisono.collectives.reductions import REDUCTIONS
from unisono.collectives.shm.operations import describe

PLURAL = [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]
SIZES = [1, *PLURAL]


@once
def launched(world_size):
    """One launch for each world size; slots of 1 KiB, so that many tensors take several pieces."""
    return run_forked(use_everything, world_size, 1)


@pytest.mark.parametrize("world_size", SIZES)
def test_equal_to_the_naive_result(world_size):
    """Every operation gives, bit for bit, what one process computes: dtypes, shapes, strides, roots, many pieces."""
    for seen in launched(world_size):
        assert seen["wrong"] == []
        assert seen["num_cases"] > 150
        assert seen["num_meetings"] > 1.3 * seen["num_cases"]  # several pieces
        assert seen["still"]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [*SIZES, 5])
def test_equal_to_the_naive_result_in_many_cases(world_size):
    """As above, with more shapes, strides and roots."""
    assert all(seen["wrong"] == [] for seen in run_forked(use_everything, world_size, 8))


def test_the_cases_cover_what_they_should():
    """Each operation meets each dtype, and all-reduce each operator."""
    found = cases(3, 1, seed=0)
    reducing = {name for name, reduces in OPERATIONS.items() if reduces}
    moved = {(case.operation, case.dtype) for case in found}
    assert moved >= {(name, dtype) for name in OPERATIONS for dtype in DTYPES if dtype != torch.float8_e4m3fn}
    assert {(name, torch.float8_e4m3fn) for name in OPERATIONS if name not in reducing} <= moved
    assert {case.op for case in found if case.operation == "all_reduce"} == set(REDUCTIONS)


@pytest.mark.parametrize("world_size", PLURAL)
def test_same_bits_on_all_ranks(world_size):
    """What all ranks receive is the same on all of them."""
    assert len({seen["digest"] for seen in launched(world_size)}) == 1


@pytest.mark.parametrize("world_size", SIZES)
def test_sum_is_that_of_the_tree(world_size):
    """A sum over many pieces is that of the canonical tree, and the test would notice another order."""
    for seen in launched(world_size):
        assert seen["sum"] == {"tree": True, "serial": world_size < 4, "backwards": world_size != 3}


DIFFERENCES = {
    "shape": ["all_reduce SUM of (3,) float32", "all_reduce SUM of (4,) float32", "pass tensors of equal shape"],
    "dimensions": ["(2, 3)", "(3, 2)"],
    "dtype": ["float32", "int32"],
    "shard": ["all_gather of (3,) int64", "all_gather of (3,) float32", "one that has got no samples"],
    "operator": ["all_reduce SUM", "all_reduce MAX"],
    "root": ["from rank 0", "from rank {last}"],
    "operation": ["all_reduce SUM", "reduce SUM", "called by all ranks, in one order"],
    "barrier": ["barrier", "all_reduce"],
    "large": ["(3000,)", "(3001,)"],
    "list": ["all_gather", "expected a list of {size} tensors"],
    "input": ["the input is (2,) float32"],
    "unknown": ["refused: BAND is not defined for float32"],
    "no list": ["scatter", "expected a list of {size} tensors, one for each rank, got none"],
    "splits": ["all_to_all: rank 0 expects 4 bytes from rank {last}, which sends 8"],
}


@pytest.mark.parametrize("world_size", PLURAL)
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_disagreement_is_an_error_on_every_rank(difference, world_size):
    """Where one rank does something else, all raise `RankDivergence` with both versions, and can go on."""
    for rank, seen in enumerate(launched(world_size)):
        message = seen["mismatches"][difference]
        assert message.startswith(f"RankDivergence: [rank {rank}/{world_size}]")
        assert "Hint: " in message
        for words in DIFFERENCES[difference]:
            assert words.format(last=world_size - 1, size=world_size) in message


@pytest.mark.parametrize("world_size", SIZES)
def test_what_cannot_be_done(world_size):
    """What no rank can do is a `ConfigError` on all, with what could be done instead."""
    for seen in launched(world_size):
        refusals = seen["refusals"]
        assert all(message.startswith("ConfigError: [rank ") for message in refusals.values()), refusals
        assert f"expected a root from 0 to {world_size - 1}" in refusals["root"]
        assert "BAND is not defined for float32; defined: SUM, AVG, MIN" in refusals["bits of floats"]
        assert "AVG is not defined for bool; defined: SUM, MIN" in refusals["mean of truth values"]
        assert "SUM is not defined for float8_e4m3fn; defined: nothing" in refusals["float8"]


def test_words_for_shapes():
    """Equal shapes and dtypes have equal words, different ones different words, and no list is too long for a note."""
    assert describe([torch.ones(2, 3)]) == "(2, 3) float32"
    assert describe([torch.ones(3)] * 4) == "(3,) float32 x 4"
    many = [torch.ones(n, dtype=torch.int8) for n in range(40)]
    assert len(describe(many)) < 100
    assert describe(many) != describe([*many[:-1], torch.ones(7, dtype=torch.int8)])
    assert describe(many) == describe([tensor.clone() for tensor in many])
