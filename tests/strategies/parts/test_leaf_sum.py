"""The sum of leaves: the bits of the canonical tree on any number of ranks, in memory that is used again."""

import numpy as np
import torch
from torch import nn

from ranks import run_threads
from reference import bits, pairwise_sum
from unisono.collectives.loopback import LoopbackTransport
from unisono.collectives.placement import place_evenly
from unisono.strategies.parts.leaf_sum import LeafSum
from unisono.strategies.parts.replica_buffers import ReplicaBuffers

REPLICAS = 5


def gradient(replica):
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(replica))


def add_up(leaf_sum, model, hosted, placement):
    """Do a step whose replicas have random gradients of the weight, and none of the bias; return the checksum."""
    leaf_sum.start_step(REPLICAS)
    present = np.zeros(len(leaf_sum.trainable), dtype=bool)
    for replica in hosted:
        model.weight.grad = gradient(replica)
        leaf_sum.add(replica, [], present)
    checksum, _ = leaf_sum.reduce(placement)
    leaf_sum.finish_step(np.array([True, False]), np.zeros(0, dtype=bool), np.zeros(0, dtype=np.int64), is_kept=True)
    return checksum


def test_the_sum_is_the_trees_on_any_number_of_ranks():
    """Gradient and checksum are equal; what no replica has stays without a gradient."""

    def program(transport):
        model, placement = nn.Linear(4, 3), place_evenly(REPLICAS, transport.world_size)
        leaf_sum = LeafSum(dict(model.named_parameters()), ReplicaBuffers(model.named_modules()), transport)
        checksum = add_up(leaf_sum, model, placement[transport.rank], placement)
        return bits(model.weight.grad).hex(), model.bias.grad is None, checksum

    expected = pairwise_sum([gradient(replica) for replica in range(REPLICAS)], torch.add)
    found = [report for world_size in (1, 2, 3, 5) for report in run_threads(program, world_size)]
    assert found == [found[0]] * 11
    assert found[0][:2] == [bits(expected).hex(), True]
    assert bits(sum(gradient(replica) for replica in range(REPLICAS))) != bits(expected)  # another order


def test_memory_is_used_again_until_something_is_frozen():
    """Later steps make no new buffers; a frozen parameter loses its gradient and its place."""
    model = nn.Linear(4, 3)
    leaf_sum = LeafSum(dict(model.named_parameters()), ReplicaBuffers([]), LoopbackTransport())
    add_up(leaf_sum, model, range(REPLICAS), [range(REPLICAS)])
    places = {buffer.flats[0].data_ptr() for buffer in [*leaf_sum._pool, leaf_sum._total]}
    for _ in range(3):
        add_up(leaf_sum, model, range(REPLICAS), [range(REPLICAS)])
        assert model.weight.grad.data_ptr() in places
    model.bias.requires_grad_(False)
    leaf_sum.start_step(REPLICAS)
    assert list(leaf_sum.trainable) == ["weight"]
    assert model.weight.grad is None
