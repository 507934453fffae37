"""The first step of a launch: does the loss depend on the worker that computes it, or on the moment?"""

import random
import time
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from ranks import run_threads
from unisono.strategies.witness.first_loss import FirstLoss

INPUTS, TARGETS = torch.randn(24, 6, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3


class Named(torch.utils.data.Dataset):
    """Samples as dictionaries, as other libraries have them."""

    def __len__(self):
        return len(TARGETS)

    def __getitem__(self, index):
        return {"values": INPUTS[index], "labels": TARGETS[index]}


def train(transport, make_loss, data=None):
    """Do three steps as one rank; return the fingerprint."""
    with unisono.Run(seed=0, replicas=3, transport=transport) as run:
        model, _ = run.prepare(model := nn.Linear(6, 3), torch.optim.SGD(model.parameters(), lr=0.1))
        loss = make_loss(model, transport.rank)
        for batch in run.steps(run.loader(data or unisono.ArrayDataset(INPUTS, TARGETS), batch_size=12), max_steps=3):
            run.step(batch, loss)
        return run.fingerprint()


def with_rank(model, rank):
    return lambda micro: F.cross_entropy(model(micro.x), micro.y) * (1 + rank)


def with_noise(model, rank):
    noise = torch.rand(6, generator=torch.Generator().manual_seed(rank))  # as an unseeded one draws
    return lambda micro: F.cross_entropy(model(micro.x + noise), micro.y)


def hidden(model, rank):
    seen = {"who": type("Who", (), {"__slots__": ("rank",)})()}
    seen["who"].rank = rank
    return lambda micro: F.cross_entropy(model(micro.x), micro.y) * (1 + seen["who"].rank)


@pytest.mark.parametrize(
    ("make_loss", "reads"),
    [
        (with_rank, r"It reads `rank` \(0 and 1\)\. Hint"),
        (with_noise, r"It reads `noise` \(a tensor, not the same\)\. Hint"),
        (hidden, r"No variable that it reads differs: it may ask for the rank \(run\.world\.rank, RANK\)"),
    ],
)
def test_a_loss_that_depends_on_the_rank_is_refused(make_loss, reads):
    """By its value on both, and what it reads, before any weight has changed."""
    said = rf"step 1: the loss of replica 0 is [\d.]+ on rank 0 and [\d.]+ on rank 1, with the same samples.*{reads}"
    with pytest.raises(unisono.StepError, match=said):
        run_threads(train, 2, make_loss)


def test_control_without_the_comparison_other_weights_are_trained(monkeypatch):
    monkeypatch.setattr(FirstLoss, "compute", lambda *_: None)
    (alone,) = run_threads(train, 1, with_rank)
    assert alone not in run_threads(train, 2, with_rank)


@pytest.mark.parametrize(
    "value",
    [
        lambda: time.perf_counter() % 1,
        lambda: random.SystemRandom().random(),
        lambda: np.random.default_rng().random(),
        lambda: torch.rand((), generator=torch.Generator().manual_seed(random.SystemRandom().getrandbits(32))),
    ],
)
def test_a_loss_that_depends_on_the_moment_is_refused(value):
    """On one worker, too: no run could be repeated."""
    said = "another loss when it is called again for the same micro-batch, although nothing that it keeps has changed"
    with pytest.raises(unisono.StepError, match=said):
        run_threads(train, 1, lambda model, rank: lambda micro: F.cross_entropy(model(micro.x), micro.y) * value())


def usual(model, rank):
    return lambda micro: F.cross_entropy(model(F.dropout(micro.x)), micro.y)


def test_the_comparison_leaves_no_trace(monkeypatch):
    """Neither in the weights of a model with dropout, nor in a log of the losses: an entry a micro-batch."""
    logs = {}

    def logging(model, rank):
        log = logs[rank] = []

        def loss(micro):
            found = F.cross_entropy(model(F.dropout(micro.x)), micro.y)
            log.append(found.item())
            return found

        return loss

    compared = run_threads(train, 2, logging)
    assert (len(logs[0]), len(logs[1])) in ((6, 3), (3, 6))
    monkeypatch.setattr(FirstLoss, "compute", lambda *_: None)
    assert compared == run_threads(train, 2, usual)


@pytest.mark.parametrize("is_log_kept", [False, True])
def test_a_loss_may_take_its_micro_batch_apart(is_log_kept):
    """Labels that are popped, inputs that are changed in place: each call gets a micro-batch of its own."""
    log = []

    def apart(model, rank):
        def loss(micro):
            labels = micro.pop("labels")
            if is_log_kept:
                log.append(len(labels))
            return F.cross_entropy(model(micro["values"].mul_(2)), labels)

        return loss

    def plain(model, rank):
        return lambda micro: F.cross_entropy(model(2 * micro["values"]), micro["labels"])

    found = [run_threads(lambda transport, each=each: train(transport, each, Named()), 2) for each in (apart, plain)]
    assert found[0] == found[1]


class Mark:
    """Lives as long as a graph."""


class Seen:
    """What the guard does not look into, and so does not put back."""

    __slots__ = ("alive", "graphs")


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss, seen):
        ctx.mark = Mark()
        seen.graphs.append(weakref.ref(ctx.mark))
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def test_the_first_step_holds_one_graph_at_a_time():
    """What is computed once more is computed when the pass before it is gone: a model may fill the memory."""
    alive = []

    def make_loss(model, rank):
        seen = Seen()
        seen.graphs, seen.alive = [], alive

        def loss(micro):
            seen.alive.append(sum(graph() is not None for graph in seen.graphs))
            return Marked.apply(F.cross_entropy(model(micro.x), micro.y), seen)

        return loss

    run_threads(train, 2, make_loss)
    assert len(alive) == 9 + 2 + 1  # of nine passes, a second call on each rank, and replica 0's on the other
    assert max(alive) == 0
