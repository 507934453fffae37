"""What several engines refuse alike."""

import pytest

from unisono.errors import ConfigError
from unisono.launchers.engines.job import Job, NodesJob


def test_each_worker_needs_a_gpu_where_there_are_any():
    """None at all is fine; fewer than workers is not."""
    NodesJob(workers_per_node=8, gpus_per_node=0)
    NodesJob(workers_per_node=8, gpus_per_node=8)
    with pytest.raises(ConfigError, match="each of the 4 workers of a node, got 2"):
        NodesJob(workers_per_node=4, gpus_per_node=2)


def test_names_of_variables():
    """As a shell takes them."""
    Job(env=dict.fromkeys(["A", "_b1", "PATH"], ""))
    for name in ("", "1A", "A-B", "A=B", "A B"):
        with pytest.raises(ConfigError, match="expected --env NAME=VALUE"):
            Job(env={"A": "", name: ""})
