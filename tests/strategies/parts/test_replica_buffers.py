"""Buffers under several replicas: kept apart, merged once, untouched where nobody touched them."""

import numpy as np
import torch
from torch import nn

from ranks import run_threads
from unisono.collectives.loopback import LoopbackTransport
from unisono.strategies.parts.replica_buffers import ReplicaBuffers


class Holder(nn.Module):
    """Two buffers that one module shares with another, counters and a mask."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(5))
        self.register_buffer("mean", torch.tensor([1.0, 2.0]))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("nothing", None)
        self.register_buffer("passing", torch.zeros(1), persistent=False)
        self.inner = nn.Module()
        self.inner.register_buffer("same", self.mean)


def step(buffers, model, transport, hosted, act, weights):
    """Run one step by hand: `act` is what each replica's forward does."""
    changed = np.zeros(buffers.num_buffers, dtype=bool)
    views = [torch.full_like(buffer, -0.0) for buffer in buffers.floats()]
    buffers.start_step()
    for replica in hosted:
        buffers.start_replica()
        act(model, replica)
        mine = buffers.collect(weights[replica], changed)
        for view, value in zip(views, mine, strict=True):
            view.add_(value)
    counted = np.full(buffers.num_counted, np.iinfo(np.int64).min)
    buffers.tell(counted)
    rows = transport.all_gather_json([changed.tolist(), counted.tolist()])
    changed = np.any([row[0] for row in rows], axis=0)
    told = transport.bytes_sent
    buffers.finish_step(transport, views, changed, np.max([row[1] for row in rows], axis=0).astype(np.int64))
    return transport.bytes_sent - told


def test_what_is_kept():
    """Each buffer counts once, also where modules share it; floats come first, None is nothing."""
    buffers = ReplicaBuffers(Holder().named_modules())
    assert (buffers.num_buffers, buffers.num_float) == (4, 2)
    assert [len(buffer) for buffer in buffers.floats()] == [2, 1]
    assert [len(buffer) for buffer in buffers.saved_floats().values()] == [2]


def test_replicas_do_not_see_each_other():
    """Every replica starts from the step's start, also where a module has put another tensor in place."""
    model, seen = Holder(), []

    def act(model, replica):
        seen.append((model.count.item(), model.mean.tolist()))
        model.count.add_(1 + replica)
        model.mean = model.mean + replica

    step(ReplicaBuffers(model.named_modules()), model, LoopbackTransport(), range(3), act, [0.5, 0.25, 0.25])
    assert seen == [(5, [1.0, 2.0])] * 3
    assert model.count.item() == 8  # the largest
    assert model.mean.tolist() == [1.75, 2.75]  # the weighted mean of +0, +1, +2
    assert model.inner.same.tolist() == [1.75, 2.75]


def test_untouched_buffers_keep_their_bits():
    """Fifths of a value that do not add up to it do no harm where nobody changed it."""
    model = Holder()
    model.mean.copy_(torch.tensor([0.1, -0.0]))
    step(
        ReplicaBuffers(model.named_modules()),
        model,
        LoopbackTransport(),
        range(5),
        lambda model, replica: None,
        [0.2] * 5,
    )
    assert model.mean.equal(torch.tensor([0.1, 0.0]))
    assert model.mean.signbit().tolist() == [False, True]


def test_counters_over_ranks():
    """Counters and masks take the largest value of any rank; a rank without a replica has no say."""

    def program(transport):
        model = Holder()
        hosted = [range(2), range(2, 3), range(3, 3)][transport.rank]

        def act(model, replica):
            model.count.sub_(3 - replica)
            model.mask[1] = replica == 0

        step(ReplicaBuffers(model.named_modules()), model, transport, hosted, act, [0.5, 0.25, 0.25])
        return model.count.item(), model.mask.tolist()

    assert run_threads(program, 3) == [[4, [True, True]]] * 3


class Masked(nn.Module):
    """A counter and a mask that is too large for the report."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.zeros(40, dtype=torch.int64))
        self.register_buffer("count", torch.tensor(0))


def test_only_a_large_mask_that_changes_is_told_apart():
    """The ranks meet once more for it, before anything is overwritten; counters have travelled in the report."""

    def program(transport):
        model, seen = Masked(), []
        hosted = [range(2), range(2, 3), range(3, 3)][transport.rank]

        def count(model, replica):
            model.count.add_(replica)

        def write(model, replica):
            count(model, replica)
            model.mask[replica] = 7

        for act in (count, write):
            buffers = ReplicaBuffers(model.named_modules())
            seen.append(step(buffers, model, transport, hosted, act, [0.5, 0.25, 0.25]) > 0)
        return buffers.num_counted, seen, model.count.item(), model.mask[:4].tolist(), model.mask.sum().item()

    assert run_threads(program, 3) == [[1, [False, True], 4, [7, 7, 7, 0], 21]] * 3


def test_a_model_without_buffers():
    """Nothing to keep apart is nothing to do."""
    model = nn.Linear(2, 2)
    buffers = ReplicaBuffers(model.named_modules())
    step(buffers, model, LoopbackTransport(), range(2), lambda model, replica: None, [0.5, 0.5])
    assert (buffers.num_buffers, buffers.floats()) == (0, [])
