"""A drop-in for torch's sampler: its shares and lengths, an order that moves on, a place to resume from."""

import json
import warnings

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import data

from unisono.collectives.loopback import run_ranks
from unisono.collectives.places import enter_world, world_of
from unisono.data.distributed_sampler import DistributedSampler
from unisono.data.sampler import ExactSampler
from unisono.errors import ConfigError


def epoch(number, num_samples=64, **settings):
    return ExactSampler(num_samples, num_samples, **settings).batch(number + 1).tolist()


@settings(max_examples=60)
@given(st.integers(1, 300), st.integers(1, 9), st.integers(0, 3), st.booleans(), st.booleans())
def test_shares_and_lengths_are_torchs(num_samples, num_replicas, number, shuffle, drop_last):
    """All ranks have equally many samples, as many as torch's sampler gives, dealt out of the order in the same way."""
    for rank in range(num_replicas):
        theirs = data.DistributedSampler(range(num_samples), num_replicas, rank, False, 4, drop_last)
        ours = DistributedSampler(range(num_samples), num_replicas, rank, shuffle, 4, drop_last)
        assert isinstance(ours, data.DistributedSampler)
        for name in ("dataset", "num_replicas", "rank", "num_samples", "total_size", "drop_last", "seed"):
            assert getattr(ours, name) == getattr(theirs, name)
        ours.set_epoch(number)
        order = epoch(number, num_samples, seed=4, shuffle=shuffle)
        assert list(ours) == [order[place] for place in theirs]
        assert len(ours) == len(theirs)


@settings(max_examples=40)
@given(st.integers(1, 300), st.integers(1, 9), st.integers(0, 3), st.booleans())
def test_each_sample_exactly_once_on_request(num_samples, num_replicas, number, shuffle):
    """With `exact_once` each sample comes once over all ranks; lengths differ by one at most and are as announced."""
    samplers = [
        DistributedSampler(range(num_samples), num_replicas, rank, shuffle=shuffle, seed=4, exact_once=True)
        for rank in range(num_replicas)
    ]
    for sampler in samplers:
        sampler.set_epoch(number)
    shares = [list(sampler) for sampler in samplers]
    assert sorted(sample for share in shares for sample in share) == list(range(num_samples))
    assert [len(share) for share in shares] == [len(sampler) for sampler in samplers]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_equal_batches_where_the_data_do_not_divide():
    """97 samples in batches of 7 are 7 batches on each of 2 ranks: a loop over DDP ends on both at once."""

    def count(**more):
        return [
            sum(1 for _ in data.DataLoader(range(97), 7, sampler=DistributedSampler(range(97), 2, rank, **more)))
            for rank in range(2)
        ]  # fmt: skip

    assert count() == [7, 7]
    assert count(drop_last=True) == [7, 7]
    assert count(exact_once=True) == [7, 7]
    assert [len(DistributedSampler(range(99), 2, rank, exact_once=True)) for rank in range(2)] == [50, 49]


def test_the_order_moves_on_when_a_pass_ends():
    """A forgotten set_epoch does not repeat an epoch; a given one reproduces it; the order is that of a run."""
    sampler = DistributedSampler(range(64), 2, 1)
    passes = [list(sampler) for _ in range(3)]
    assert passes == [epoch(number)[1::2] for number in range(3)]
    assert len(set(map(tuple, passes))) == 3
    sampler.set_epoch(1)
    assert list(sampler) == passes[1]
    assert list(sampler) == passes[2]
    assert all(type(sample) is int for sample in passes[0])


def test_a_loop_that_counts_its_batches_moves_on_too():
    """A pass is over with its last sample, also when nobody asks for one more."""
    sampler = DistributedSampler(range(64), 2, 0)
    loader = data.DataLoader(range(64), 8, sampler=sampler)
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    assert sampler.epoch == 1
    assert sampler.yielded == 0


def test_a_look_at_the_first_batch_shifts_nothing():
    """After ``next(iter(loader))`` on one rank both go through the same epoch, and the rank that left is told."""
    samplers = [DistributedSampler(range(64), 2, rank) for rank in range(2)]
    loaders = [data.DataLoader(range(64), 8, sampler=sampler) for sampler in samplers]
    next(iter(loaders[1]))
    with pytest.warns(UserWarning, match=r"rank 1 left a pass .* after 8 of 32 samples; .* epoch 0 again"):
        parts = [[sample for batch in loader for sample in batch.tolist()] for loader in loaders]
    assert sorted(parts[0] + parts[1]) == list(range(64))
    assert [sampler.epoch for sampler in samplers] == [1, 1]


def test_the_warning_comes_once_and_not_after_set_epoch():
    """Who says the epoch may leave a pass when he likes."""
    sampler = DistributedSampler(range(64), 2, 0)
    next(iter(sampler))
    with pytest.warns(UserWarning, match="set_epoch"):
        next(iter(sampler))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(sampler))
        said = DistributedSampler(range(64), 2, 0)
        for number in range(3):
            said.set_epoch(number)
            assert next(iter(said)) == epoch(number)[0]


def test_a_pass_is_resumed_where_it_was():
    """The state goes through JSON; what comes after is what would have come; the epochs after it too."""
    sampler = DistributedSampler(range(64), 2, 1)
    list(sampler)
    running = iter(sampler)
    begun = [next(running) for _ in range(5)]
    state = json.loads(json.dumps(sampler.state_dict()))
    assert (state["epoch"], state["yielded"]) == (1, 5)
    resumed = DistributedSampler(range(64), 2, 1)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    resumed.set_epoch(1)  # what a resumed loop says again
    assert begun + list(resumed) == epoch(1)[1::2]
    assert list(resumed) == epoch(2)[1::2]


def test_the_place_alone_is_enough():
    """A state of torchdata's sampler holds the place; the epoch is said by set_epoch."""
    sampler = DistributedSampler(range(64), 2, 0)
    sampler.set_epoch(3)
    sampler.load_state_dict({"yielded": 30})
    assert list(sampler) == epoch(3)[0::2][30:]


@settings(max_examples=40)
@given(st.integers(1, 200), st.integers(1, 6), st.integers(1, 6), st.integers(0, 40))
def test_other_ranks_go_on_where_all_have_been(num_samples, before, after, yielded):
    """A place that another number of ranks can share: together they see what is left, and nothing twice."""
    old = DistributedSampler(range(num_samples), before, 0, drop_last=True)
    yielded = min(yielded, max(0, len(old) - 1))
    running = iter(old)
    for _ in range(yielded):
        next(running)
    rest = []
    for rank in range(after):
        sampler = DistributedSampler(range(num_samples), after, rank, exact_once=True)
        if yielded * before % after:
            with pytest.raises(ConfigError, match="no whole number"):
                sampler.load_state_dict(old.state_dict())
            return
        sampler.load_state_dict(old.state_dict())
        rest += list(sampler)
    assert sorted(rest) == sorted(epoch(0, num_samples)[yielded * before :])


@pytest.mark.parametrize(
    ("state", "match"),
    [({}, "yielded"), ({"yielded": -1}, "yielded"), ({"yielded": 1, "seed": 7}, "seed=0, got seed=7"),
     ({"yielded": 1, "num_samples": 65}, "num_samples=64"), ({"yielded": 99}, "no whole number")],
)  # fmt: skip
def test_states_of_others_are_refused(state, match):
    """A state that belongs to other data, or to no sampler."""
    with pytest.raises(ConfigError, match=match):
        DistributedSampler(range(64), 2, 0).load_state_dict(state)


def test_the_ranks_are_those_of_the_world():
    """Without numbers the sampler asks the process group, or the run's world."""
    assert not dist.is_initialized()

    def program(transport):
        enter_world(world_of(transport))
        sampler = DistributedSampler(range(10))
        enter_world(None)
        return sampler.num_replicas, sampler.rank

    assert run_ranks(program, 3) == [(3, 0), (3, 1), (3, 2)]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert (DistributedSampler(range(10)).num_replicas, DistributedSampler(range(10)).rank) == (1, 0)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("num_replicas", "rank"), [(2, 2), (2, -1), (0, 0)])
def test_a_rank_outside_is_refused(num_replicas, rank):
    """A rank must be one of the replicas."""
    with pytest.raises(ConfigError, match="rank < num_replicas"):
        DistributedSampler(range(4), num_replicas, rank)


def test_what_cannot_be_is_refused():
    """Nothing to share out; leaving samples out and leaving none out."""
    with pytest.raises(ConfigError, match="num_samples"):
        DistributedSampler([], 1, 0)
    with pytest.raises(ConfigError, match="got both"):
        DistributedSampler(range(4), 2, 0, drop_last=True, exact_once=True)
