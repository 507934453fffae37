"""``unisono bench links``: ways to train over slow links, side by side."""

import json
import sys

import pytest
from click.testing import CliRunner

from hosts import Hosts
from unisono.cli.bench import bench
from unisono.cli.bench.links import ways_table
from unisono.experiments.job import plan
from unisono.scaling.slow_links import WAYS


def test_names_of_ways():
    """A slip is answered with what was meant."""
    done = CliRunner().invoke(bench, ["links", "digits", "--ways", "local-sgd"])
    assert done.exit_code == 2
    assert "got 'local-sgd'. Hint: did you mean 'local_sgd'" in done.output


@pytest.mark.parametrize("name", WAYS)
def test_every_way_is_one_that_train_knows(name):
    """Checked as `unisono train` checks it."""
    job = plan("digits", "2", {"threads": 1, **WAYS[name].setting})
    assert job.options.strategy.name == WAYS[name].setting.get("strategy", "exact")


def test_the_table():
    """Median, range, what to type; the proposed one is marked."""
    lines = ways_table({"exact": [10.0, 30.0, 20.0], "bf16": [4000.0]}, "bf16")
    assert [line.split() for line in lines] == [
        ["samples/s", "all", "runs", "way", "options"],
        ["20", "10-30", "exact"],
        ["*", "4,000", "4,000-4,000", "bf16", "--strategy", "ddp", "--comm-hook", "bf16"],
    ]


@pytest.mark.slow
def test_two_hosts_measure_together(tmp_path):
    """Each run meets at a port of its own; both hosts come to the same proposal."""
    hosts = Hosts(tmp_path)
    try:
        for rank, name in enumerate("ab"):
            meet = ["--nnodes", "2", "--node-rank", str(rank), "--rdzv-endpoint", hosts.endpoint]
            bench_links = [sys.executable, "-m", "unisono", "bench", "links", "digits", "--json"]
            hosts.launch(name, [*bench_links, "--steps", "8", "-r", "1", "--ways", "local_sgd", *meet])
        assert hosts.finish() == [0, 0], hosts.words()
        first, second = (json.loads(host.out_file.read_text()) for host in hosts.started)
        assert first == second
        assert set(first["rates"]) == {"exact", "local_sgd"}
        assert all(rate > 0 for found in first["rates"].values() for rate in found)
    finally:
        hosts.close()
