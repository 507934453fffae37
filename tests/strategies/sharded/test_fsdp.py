"""Sharded training: the fingerprint of exact, a share of the memory, checkpoints for any number of ranks."""

from pathlib import Path

import pytest
import torch

import unisono
from forks import run_forked
from ranks import once
from strategies import fsdp_programs
from strategies.fsdp_programs import leg, model_of
from unisono.errors import ConfigError


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Give the ranks' comparison of a world, and the run directory that it leaves."""

    def make(world_size):
        out = str(tmp_path_factory.mktemp("fsdp") / "run")
        program = fsdp_programs.compare
        return ([program(None, out)] if world_size == 1 else run_forked(program, world_size, out)), out

    return once(make)


@pytest.mark.parametrize(
    "world_size", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ["plain", "clip", "value", "wrap", "double", "bf16", "adagrad"])
def test_the_bits_are_those_of_exact(compared, name, world_size):
    """Weights, statistics and losses, with dropout, clipping, uneven slices, and however modules are grouped."""
    reports, _ = compared(world_size)
    for report in reports:
        exact, sharded = report[name]
        assert sharded["fingerprint"] == exact["fingerprint"]
        assert sharded["losses"] == exact["losses"]
        assert sharded["moments"] == exact["moments"]
    assert len({reports[0][name][0]["fingerprint"] for name in ("plain", "clip", "value")}) == 3  # the control


def test_the_ledger_is_that_of_exact(tmp_path):
    """Checksums of slices add up to those of whole tensors, line by line."""
    for strategy in ("exact", "fsdp"):
        leg(None, strategy, 6, out=str(tmp_path / strategy))
    ledgers = [(tmp_path / strategy / "ledger.jsonl").read_text() for strategy in ("exact", "fsdp")]
    assert ledgers[0] == ledgers[1] and ledgers[0].count("\n") == 6


@pytest.mark.slow
def test_memory_per_rank_falls(compared):
    """Weights and moments on a rank are about a world-size-th of one process's."""
    whole = compared(1)[0][0]["plain"][1]["bytes"]
    assert whole == pytest.approx(3 * 4 * sum(p.numel() for p in model_of().parameters()), rel=0.01)
    for world_size in (2, 3):
        shares = [report["plain"][1]["bytes"] for report in compared(world_size)[0]]
        assert sum(shares) == pytest.approx(whole, rel=0.05)
        assert max(shares) < 1.1 * whole / world_size


@pytest.mark.slow
def test_a_run_goes_on_with_any_number_of_ranks(compared, tmp_path):
    """Saved by three, resumed by one and by two: bits and ledger of a run that was never interrupted."""
    expected = compared(1)[0][0]["plain"][1]
    _, out = compared(3)
    for resumed in [*run_forked(fsdp_programs.resume, 2, out), leg(None, "fsdp", 8, out=compared(2)[1])]:
        assert resumed["fingerprint"] == expected["fingerprint"]
        assert resumed["moments"] == expected["moments"]
    leg(None, "exact", 8, out=str(tmp_path))
    assert Path(out, "ledger.jsonl").read_text() == (tmp_path / "ledger.jsonl").read_text()


def test_wrong_settings_are_refused():
    """A class that the model does not have, and offloading from the CPU to itself."""
    with pytest.raises(ConfigError, match="no module of class Transformer; it has BatchNorm1d"):
        leg(None, "fsdp", 1, wrap=("Transformer",))
    assert not torch.distributed.is_initialized()
    with pytest.raises(ConfigError, match="where they are already"):
        leg(None, "fsdp", 1, offload=True)
    assert not torch.distributed.is_initialized()
    with pytest.raises(ConfigError, match="one of fp32, bf16, got 'fp16'"):
        unisono.strategy("fsdp", param_dtype="fp16")
