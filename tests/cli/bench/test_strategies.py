"""`unisono bench strategies`: every strategy on the same job, as a table, JSON and a picture."""

import json
import os
import subprocess
import sys

import pytest

from unisono.cli.bench.strategies import table


def row(name, **changes):
    return {
        "strategy": name, "processes": 2, "samples_per_s": 1234.5, "peak_memory_bytes": 300 << 20,
        "bytes_per_step": 50_000, "steps": 10, "metrics": {"test_accuracy": 0.9}, "fingerprint": "ab" * 32, **changes,
    }  # fmt: skip


def test_the_table_fits_a_terminal():
    """Eighty columns, one line a strategy; a recipe without accuracy leaves the column empty."""
    lines = table([row("exact"), row("model_parallel", samples_per_s=12_345_678.0, metrics={})])
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert "1,23" in lines[1]
    assert "0.9000  abababab" in lines[1]


@pytest.mark.slow
def test_strategies_are_trained_and_compared():
    """Three of them on real processes: fsdp has the fingerprint of exact, allreduce another."""
    command = [sys.executable, "-m", "unisono", "bench", "strategies", "digits", "--limit", "96", "--epochs", "1",
               "--strategies", "exact,fsdp,allreduce", "--json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    rows = {found["strategy"]: found for found in json.loads(done.stdout)}
    assert rows["exact"]["fingerprint"] == rows["fsdp"]["fingerprint"] != rows["allreduce"]["fingerprint"]
    assert all(found["samples_per_s"] > 0 and found["peak_memory_bytes"] > 1 << 26 for found in rows.values())
    assert rows["fsdp"]["bytes_per_step"] > rows["allreduce"]["bytes_per_step"] > 0
