"""The options of several hosts: what they mean, and which are refused before anything starts."""

import pytest

from unisono.errors import ConfigError
from unisono.nodes.plan import NodesPlan, parse_endpoint, parse_nodes


def plan(**settings):
    return NodesPlan(**{"min_nodes": 2, "max_nodes": 2, "host": "127.0.0.1", **settings})


def test_numbers_of_hosts():
    """One number or a range; the range is elastic."""
    assert parse_nodes("3") == (3, 3)
    assert parse_nodes("2:5") == (2, 5)
    assert plan(max_nodes=3).is_elastic and not plan().is_elastic
    for text in ("", "two", "1:", ":2", "-1", "1:2:3"):
        with pytest.raises(ConfigError, match="--nnodes N or MIN:MAX"):
            parse_nodes(text)


def test_endpoints():
    """Names, addresses and both kinds of IPv6; the default port is torch's."""
    assert parse_endpoint("node1") == ("node1", 29400)
    assert parse_endpoint("10.0.0.1:4000") == ("10.0.0.1", 4000)
    assert parse_endpoint("[fd00::1]:4000") == ("fd00::1", 4000)
    assert parse_endpoint("fd00::1") == ("fd00::1", 29400)
    assert plan(host="fd00::1", port=4).endpoint == "[fd00::1]:4"
    for text in ("", ":4000", "a:b", "a:b:c", "node1:0", "node1:70000"):
        with pytest.raises(ConfigError, match="--rdzv-endpoint"):
            parse_endpoint(text)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"min_nodes": 0}, "1 <= MIN <= MAX"),
        ({"min_nodes": 3}, "1 <= MIN <= MAX"),
        ({"node_rank": 2}, "0 <= --node-rank < 2"),
        ({"node_rank": -1}, "0 <= --node-rank < 2"),
        ({"node_rank": 0, "max_nodes": 3}, "they come and go"),
        ({"join_s": 0}, "--rdzv-timeout as a number of seconds above 0"),
    ],
)
def test_refused(settings, words):
    """Wrong node ranks and counts are refused here, before a process starts."""
    with pytest.raises(ConfigError, match=words):
        plan(**settings)
