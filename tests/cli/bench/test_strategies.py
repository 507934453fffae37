"""`unisono bench strategies`: every strategy on the same job, as a table, JSON and a picture."""

import json
import os
import subprocess
import sys

import pytest

from unisono.cli.bench.strategies import strategies_table
from unisono.errors import ConfigError
from unisono.report.strategy_picture import draw_strategies


def row(name, **changes):
    return {
        "strategy": name, "processes": 2, "samples_per_s": 1234.5, "peak_memory_bytes": 300 << 20,
        "bytes_per_step": 50_000, "steps": 10, "metrics": {"test_accuracy": 0.9}, "fingerprint": "ab" * 32, **changes,
    }  # fmt: skip


def test_the_table_fits_a_terminal():
    """Eighty columns, one line a strategy; a recipe without accuracy leaves the column empty."""
    lines = strategies_table([row("exact"), row("model_parallel", samples_per_s=12_345_678.0, metrics={})])
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert "1,23" in lines[1]
    assert "0.9000  abababab" in lines[1]


def test_the_picture_is_a_png_and_repeatable(tmp_path):
    """The same rows, the same bytes; no rows are refused."""
    rows = [row("exact"), row("ps", bytes_per_step=0, samples_per_s=None, metrics={})]
    for name in ("a.png", "b.png"):
        draw_strategies(rows, tmp_path / name, title="digits")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ConfigError, match="got none"):
        draw_strategies([], tmp_path / "c.png", title="")


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
