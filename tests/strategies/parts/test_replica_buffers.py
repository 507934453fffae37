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
    for row in transport.all_gather_json(changed.tolist()):
        changed |= np.array(row, dtype=bool)
    buffers.finish_step(transport, views, changed)


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


def test_a_model_without_buffers():
    """Nothing to keep apart is nothing to do."""
    model = nn.Linear(2, 2)
    buffers = ReplicaBuffers(model.named_modules())
    step(buffers, model, LoopbackTransport(), range(2), lambda model, replica: None, [0.5, 0.5])
    assert (buffers.num_buffers, buffers.floats()) == (0, [])
