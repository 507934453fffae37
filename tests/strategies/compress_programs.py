"""Trainings whose gradients are rounded, over any transport, on any number of ranks, with and without overlap.

A report has the digest of ledger and weights after every step, and the bytes that the rank has sent.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from strategies.overlap_programs import Centred, Poison, Sample, Training, mlp
from unisono.collectives.coding import rounding
from unisono.collectives.process_groups.transport import connect
from unisono.collectives.transport import Transport
from unisono.determinism.switches import set_determinism
from unisono.strategies.parts.fold import Fold
from unisono.world import World

KINDS = ("bf16", "int8")
STEPS = (23, 12, 3, 23)
PLACEMENTS = {3: [range(1), range(1, 3), range(3, 5)], 4: [range(1), range(1, 3), range(3, 4), range(4, 5)]}
"""Of the five replicas: ranks with several subtrees."""


def train(transport: Transport, kind: str, overlap: str, *, uneven: bool = False) -> dict[str, Any]:
    """Train a few steps; return digest and bytes."""
    placement = PLACEMENTS.get(transport.world_size) if uneven else None
    training = Training(transport, overlap, mlp(Centred()), placement=placement, compress=kind, codec="none")
    before = transport.bytes_sent
    report = training.train(STEPS).report()
    grads = [parameter.grad for parameter in training.model.parameters()]
    return report | {
        "sent": transport.bytes_sent - before,
        "rounded": all(torch.equal(grad, grad.bfloat16().float()) for grad in grads if grad is not None),
    }


def bad_gradients(transport: Transport, kind: str, overlap: str) -> dict[str, Any]:
    """Return which replicas are named where one's gradient is NaN, infinite, or infinite only when rounded."""
    model = mlp()

    def loss(sample: Sample) -> Tensor:
        is_bad = sample.replica == 1
        factor = {2: float("nan"), 3: float("inf")}.get(sample.step, 1.0) if is_bad else 1.0
        value = F.cross_entropy(model[5:](Poison.apply(model[:5](sample.x), factor)), sample.y)
        if sample.step == 4 and is_bad:  # a gradient of 3.4e38, of which a fifth is this replica's share
            value = value + (Poison.apply(model[0].bias, 5.0) * 3.4e38).sum()
        return value

    training = Training(transport, overlap, model, compress=kind).train((23, 23, 23, 25), loss)
    return training.report() | {"bad": training.bad}


def play(transport: Transport | None, overlaps: list[str], names: str = "") -> dict[str, Any]:
    """Train with each rounding and setting of `overlap`; over messages, or with hosts of these names."""
    set_determinism(1)
    world = World.current()
    hosts = {"host": names[world.rank]} if names else {"share_memory": False}
    joined = transport or connect(world, timeout_s=60, **hosts)
    found = {"transport": type(joined).__name__}
    for kind in ("none", *KINDS):
        for overlap in overlaps:
            found[f"{kind} {overlap}"] = train(joined, kind, overlap)
        found[f"{kind} uneven"] = train(joined, kind, overlaps[-1], uneven=True)
        if kind != "none":
            found[f"{kind} bad"] = bad_gradients(joined, kind, overlaps[-1])
    if transport is None:
        joined.close()
    return found


def train_large(transport: Transport, overlap: str) -> str:
    """Train a parameter that is taken off the model during the backward pass, unless `overlap` is off."""
    set_determinism(1)
    torch.manual_seed(0)
    model = nn.Linear(16, 20_000)
    training = Training(transport, overlap, model, compress="int8")
    training.train((23, 12, 3), lambda sample: model(sample.x).square().mean())
    is_taken = training.strategy._sum._early is not None
    assert is_taken == (overlap != "off")
    return training.report()["digest"]


def train_doubles(transport: Transport) -> None:
    """Train a model of float64."""
    Training(transport, "off", mlp().double(), compress="int8").train()


_here = threading.local()


def _key_of_rank() -> Any:
    right = rounding.mix
    return mock.patch.object(rounding, "mix", lambda *key: right(*key, _here.rank))


def _own_places() -> Any:
    return mock.patch.object(rounding.Rounding, "at", lambda self, first: self)


def _no_nodes() -> Any:
    right = Fold.sums
    return mock.patch.object(Fold, "sums", lambda self, part, add, settle=None: right(self, part, add))


def _no_leaves() -> Any:
    return mock.patch.object(Fold, "round_leaf", lambda self, bucket: None)


MISTAKES: dict[str, Callable[[], Any]] = {
    "chance knows the rank": _key_of_rank,
    "chance knows the piece": _own_places,
    "a rank's own sums stay": _no_nodes,
    "leaves stay": _no_leaves,
    "none": contextlib.nullcontext,
}


def play_mistake(transport: Transport) -> str:
    """Train with whatever mistake is in place; return the digest."""
    set_determinism(1)
    _here.rank = transport.rank
    return train(transport, "int8", "off")["digest"]
