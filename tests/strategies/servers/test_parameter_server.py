"""The synchronous parameter server: the bits of a tree all-reduce between its workers, however many servers."""

import pytest
from torch import nn

import unisono
from ranks import run_threads
from strategies.strategy_runs import train
from unisono.errors import ConfigError


def even():
    """Return a model of layers of equal size."""
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))


def weights(world_size, strategy, **settings):
    """Return the weights that all ranks agree on."""
    found = run_threads(lambda transport: train(transport, strategy, **settings), world_size)
    assert len({report["weights"] for report in found}) == 1
    return found[0]["weights"]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_bits_are_those_of_a_tree_between_the_workers(workers):
    """One server or two, twice the same; and a ring adds in another order where three meet."""
    expected = weights(workers, unisono.strategy("allreduce", algorithm="tree"))
    assert weights(1 + workers, unisono.strategy("ps")) == expected
    assert weights(1 + workers, unisono.strategy("ps")) == expected
    assert weights(2 + workers, unisono.strategy("ps", servers=2)) == expected
    if workers == 3:
        assert weights(workers, unisono.strategy("allreduce", algorithm="ring")) != expected


def test_the_server_is_the_bottleneck():
    """A server sends its parameters to everyone; two servers share that; a ring's ranks send the same each."""

    def sent(world_size, strategy):
        found = run_threads(lambda transport: train(transport, strategy, build=even), world_size)
        return [report["bytes"] for report in found]

    one, two = sent(5, unisono.strategy("ps")), sent(6, unisono.strategy("ps", servers=2))
    ring = sent(4, unisono.strategy("allreduce"))
    assert one[0] > 2.5 * max(one[1:])
    assert max(two) < 0.7 * one[0]
    assert max(ring) < 1.05 * min(ring) < one[0]


@pytest.mark.parametrize(("world_size", "options", "message"), [
    (1, {}, "needs a worker beside 1 server, got 1 process. Hint: --workers 2"),
    (2, {"servers": 2}, "needs a worker beside 2 servers, got 2 processes"),
])  # fmt: skip
def test_a_server_alone_is_refused(world_size, options, message):
    """Said before anything starts."""
    with pytest.raises(ConfigError, match=message):
        unisono.strategy("ps", **options).place(4, world_size)
    with pytest.raises(ConfigError, match="a replica for each of 3 workers, got 2"):
        unisono.strategy("ps").place(2, 4)
