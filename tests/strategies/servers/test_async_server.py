"""The asynchronous parameter server: never staler than the bound, goes on without a dead worker, not without itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import unisono
from ranks import once, run_processes
from strategies import async_programs
from unisono.errors import ConfigError
from unisono.strategies.parts.tensor_bytes import from_bytes, to_bytes
from unisono.strategies.servers.channels import decode, encode

TESTS = Path(__file__).parents[2]


@once
def bounded():
    """Return every rank's report of the runs with a slow worker."""
    return run_processes(async_programs.bounded, 3)


@pytest.mark.slow
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_staleness_stays_within_the_bound_and_reaches_it(bound):
    """A fast worker beside a slow one gets so far ahead, and never further; every answer is counted."""
    counts = {int(steps): number for steps, number in bounded()[0][f"staleness {bound}"].items()}
    assert max(counts) == bound
    assert sum(counts.values()) == 2 * 9 * 4  # two workers, nine steps, four epochs


@pytest.mark.slow
def test_a_bound_of_zero_is_the_synchronous_server():
    """Bit for bit, on all ranks."""
    assert len({report[kind] for report in bounded() for kind in ("zero", "ps")}) == 1


def start(lost, folder):
    """Start three ranks by hand, so that nothing ends the others when one dies."""
    env = {**os.environ, "PYTHONPATH": str(TESTS), "WORLD_SIZE": "3", "UNISONO_RENDEZVOUS": str(folder / "meet"),
           "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "3"}  # fmt: skip
    return [
        subprocess.Popen(
            [sys.executable, "-m", "strategies.async_programs", str(lost), str(folder)],
            env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(3)
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 2])
def test_a_dead_worker_is_dropped_a_dead_server_is_the_end(tmp_path, lost):
    """The rest train, evaluate and save without the worker; without the server they say what has happened."""
    ranks = start(lost, tmp_path)
    told = [rank.communicate(timeout=220)[1] for rank in ranks]
    assert ranks[lost].returncode == -9
    others = [rank for rank in range(3) if rank != lost]
    reports = {rank: json.loads((tmp_path / f"{rank}.json").read_text()) for rank in others}
    if lost == 0:
        assert all("PeerLost" in reports[rank]["error"] and "server (rank 0) has died" in reports[rank]["error"]
                   for rank in others)  # fmt: skip
        return
    assert [ranks[rank].returncode for rank in others] == [0, 0], told
    assert reports[0]["result"]["dead_workers"] == [2]
    assert reports[0]["result"]["steps"] == 27
    assert reports[0]["result"]["fingerprint"] == reports[1]["result"]["fingerprint"]
    assert reports[0]["scores"] == reports[1]["scores"]
    assert "rank 2 has died; the parameter server goes on with 1 workers" in told[0]
    assert list((tmp_path / "run" / "checkpoints").glob("step-00000027.*"))


def test_messages_survive_the_line():
    """What is encoded is decoded, and tensors of any dtype keep their bits."""
    tensors = [torch.randn(3, 2), torch.tensor([1.5], dtype=torch.bfloat16), torch.arange(5), torch.tensor(7)]
    kind, clock, count, value, body = decode(encode(1, 7, 9, -0.1, to_bytes(tensors)))
    assert (kind, clock, count, value) == (1, 7, 9, -0.1)
    copies = [torch.zeros_like(tensor) for tensor in tensors]
    from_bytes(body, copies)
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))
    assert decode(encode(0, 0, 0, 0.0))[4].numel() == 0


def test_one_server_only():
    """Several servers are for ps."""
    with pytest.raises(ConfigError, match="ps_async has one server"):
        unisono.strategy("ps_async", servers=2)
    with pytest.raises(ConfigError, match="max_staleness as a whole number of steps from 0"):
        unisono.strategy("ps_async", max_staleness=-1)
