"""The options of several hosts: old words and new, and what contradicts itself."""

import pytest

from unisono.errors import ConfigError
from unisono.nodes.plan import NodesOptions


def plan(**given):
    return NodesOptions(**given).plan()


def test_one_host():
    """Nothing given, or one host: no meeting."""
    assert plan() is None
    assert plan(nnodes="1", node_rank=0, rdzv_endpoint="a:1") is None


def test_two_spellings():
    """The old notes' words and torchrun's mean the same."""
    new = plan(nnodes="2", node_rank=1, rdzv_endpoint="10.0.0.1:4000")
    old = plan(nnodes="2", node_rank=1, master_addr="10.0.0.1", master_port=4000)
    assert new == old
    assert (new.host, new.port, new.node_rank, new.is_elastic) == ("10.0.0.1", 4000, 1, False)
    assert plan(nnodes="1:4", rdzv_endpoint="a").is_elastic


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nnodes": "2"}, "needs --rdzv-endpoint"),
        ({"nnodes": "2", "rdzv_endpoint": "a", "master_addr": "b"}, "say the same"),
        ({"nnodes": "2", "rdzv_endpoint": "a", "master_port": 1}, "--master-port belongs to"),
        ({"node_rank": 1}, "needs --nnodes"),
        ({"nnodes": "2", "rdzv_endpoint": "a", "node_rank": 2}, "0 <= --node-rank < 2"),
        ({"nnodes": "x"}, "--nnodes N or MIN:MAX"),
        ({"nnodes": "0"}, "1 <= MIN <= MAX, got '0'"),
        ({"nnodes": "3:2", "rdzv_endpoint": "a"}, "1 <= MIN <= MAX, got '3:2'"),
        ({"rdzv_endpoint": "a:1"}, "--rdzv-endpoint a:1 needs --nnodes.*--nnodes 1 for this one alone"),
    ],
)
def test_refused(given, words):
    """What contradicts itself is refused before anything starts."""
    with pytest.raises(ConfigError, match=words):
        plan(**given)
