"""The pieces of a training step outside the strategy, as plain functions."""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch.optim import Optimizer

from unisono.collectives.placement import parts_of
from unisono.collectives.transport import Transport
from unisono.data.batches import move
from unisono.data.sampler import Indices
from unisono.determinism.switches import UNLIKE, drift
from unisono.errors import RankDivergence
from unisono.observe.compare import diff
from unisono.observe.ledger import Entry, hash_samples
from unisono.strategies.base import Gradients, Micro


class Batch(NamedTuple):
    """One step's work, as handed out by `Run.steps` and taken by `Run.step`.

    Attributes:
        step: The step to come, 1-based.
        epoch: Its epoch, 0-based.
        indices: int64 (n,): the samples of the whole batch, over all ranks, in order.
        micros: This rank's micro-batches; fetched one at a time by `Run.step`.
        chain: Of a stream, the hash of its items up to these; else empty.
    """

    step: int
    epoch: int
    indices: Indices
    micros: Iterator[Micro]
    chain: str = ""

    def __getattr__(self, name: str) -> Any:
        """Say where samples are, to who looks for them here (`batch.x`)."""
        raise AttributeError(f"a batch of run.steps() has no {name!r}: {_NO_SAMPLES}")

    def __iter__(self) -> NoReturn:
        """Say it to who takes it for a pair of inputs and targets (`x, y = batch`), too; so do index and length."""
        raise TypeError(
            f"a batch of run.steps() is no pair of inputs and targets: {_NO_SAMPLES}; x, y = micro works there"
        )

    def __getitem__(self, _: Any) -> NoReturn:
        self.__iter__()

    def __len__(self) -> NoReturn:
        raise TypeError(f"a batch of run.steps() has no length: {_NO_SAMPLES}; len(batch.indices) counts the samples")

    def __bool__(self) -> bool:
        return True

    def __copy__(self) -> "Batch":
        return self


_NO_SAMPLES = (
    "the samples come in micro-batches, which run.step() gives to the loss function. "
    "Hint: run.step(batch, lambda micro: loss(model(micro.x), micro.y))"
)


def pin(optimizer: Optimizer) -> None:
    """Settle what an optimizer would choose for itself: ``fused`` off, ``foreach`` on, where they are left open.

    With a tensor as learning rate, torch has no ``foreach`` on the CPU.
    """
    for group in optimizer.param_groups:
        if "fused" in group and group["fused"] is None:
            group["fused"] = False
        if "foreach" in group and group["foreach"] is None:
            group["foreach"] = not group.get("fused", False) and not isinstance(group.get("lr"), torch.Tensor)


def hosted_micros(
    num_samples: int, fetched: Iterator[Any], placement: Sequence[range], rank: int, device: torch.device
) -> Iterator[Micro]:
    """Yield a rank's micro-batches of one step on `device`, with the replica that computes each.

    `fetched` holds what the loader yields: only micro-batches with samples, in replica order.
    """
    parts = parts_of(num_samples, placement[-1].stop)
    for replica in placement[rank]:
        if size := len(parts[replica]):
            yield _micro((replica, size, move(next(fetched), device)))


_micro: Callable[[tuple[int, int, Any]], Micro] = functools.partial(tuple.__new__, Micro)  # a third of Micro()'s time


def entry_of(batch: Batch, gradients: Gradients, lr: float, evaluations: int = 0) -> Entry:
    """Return the ledger's line of a step; one with bad replicas was skipped, and NaN has no certain bits."""
    return Entry(
        step=batch.step,
        epoch=batch.epoch,
        num_samples=len(batch.indices),
        samples=batch.chain or hash_samples(batch.indices),
        loss=gradients.loss.hex(),
        gradient="skipped" if gradients.bad_replicas else f"{gradients.checksum:016x}",
        weights=f"{gradients.weights:016x}",
        lr=lr.hex(),
        samples_weight="" if gradients.samples_weight is None else gradients.samples_weight.hex(),
        evaluations=evaluations,
    )


def check_alike(
    transport: Transport, description: dict[str, Any], environment: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Compare what all ranks have built, on what, and how; `RankDivergence` names the first difference; collective."""
    host = os.uname().nodename
    mine = [description, environment, settings, host]
    for rank, theirs in enumerate(transport.all_gather_json(mine, of="run.prepare, its model")):
        built, on, how = diff(description, theirs[0]), drift(environment, theirs[1]), diff(settings, theirs[2])
        if lines := how + built + on:  # settings first: what was built follows from them
            hosts = f" (host {host})", f" (host {theirs[3]})"
            if [line.partition(":")[0] for line in lines] == ["model.initial_weights"]:
                raise RankDivergence(
                    "the ranks begin with different weights: the model was built before unisono.Run(seed=...), or what "
                    f"builds it depends on the rank. Hint: {_BUILT}. "
                    f"Rank {transport.rank} and rank {rank} differ before the first step: {lines[0]}."
                )
            raise RankDivergence(
                f"rank {transport.rank}{hosts[0] if on else ''} and rank {rank}{hosts[1] if on else ''} differ before "
                f"the first step: {'; '.join(lines[:3])}. Hint: {_SET if how else _BUILT if built else UNLIKE}."
            )


_BUILT = (
    "build the model after Run(seed=...), from nothing that depends on the rank; run.load_weights(path, model) on all "
    "ranks brings weights that the leader reads to all"
)
_SET = "the same Run(...) and strategy on all ranks; options of the launcher (--shares, --witness) alike on all hosts"
