"""Steps of a run that is computed again: they are looked at when they are done, or a debugger stops in one of them.

In: what is asked, as `World.examine` says it. Out: lines of JSON in the file that is named there. The step itself is
computed as always: what is looked at comes after it, on a copy of what it began with.
"""

import contextlib
import json
from bdb import BdbQuit
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import Tensor

from unisono.collectives.placement import parts_of
from unisono.data.batches import move
from unisono.data.loader import Loader, Task
from unisono.data.sampler import Indices
from unisono.errors import ConfigError, StepError
from unisono.observe.suspects import order
from unisono.strategies.base import Gradients, Micro
from unisono.strategies.objective import LossFunction, Objective
from unisono.strategies.parts.backward import key_generators
from unisono.system.files import to_json
from unisono.train.steps.examination import Examination, Gradient, shown
from unisono.train.steps.loop import Batch
from unisono.train.steps.stepper import Stepper
from unisono.train.steps.updates import Update


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What is asked of a run."""

    first: int  #: The first step to look at.
    last: int  #: The last one.
    out: str  #: The file to which a line is added for each.
    replica: int | None = None  #: The debugger stops in its loss function; None: there is none.
    without: tuple[int, ...] = ()  #: Samples without which the steps are computed once more, all of them left out.
    show: int = 0  #: How many samples to show.
    by: str = "suspect"  #: Those that come first in this order, see `order`.

    @classmethod
    def read(cls, text: str) -> Self:
        """Return what `write` has made a text of."""
        found = json.loads(text)
        return cls(**found | {"without": tuple(found["without"])})


@final
class Examined(Stepper):
    """Runs steps as `Stepper` does, and looks at some of them."""

    def __init__(self, *parts: Any, examine: str, **others: Any) -> None:
        super().__init__(*parts, **others)
        self._asked, self._gradient = Asked.read(examine), Gradient()
        self._losses: tuple[float, ...] = ()
        self._here = -1  # the replica that is being computed

    def step(self, batch: Batch, objective: Objective, loss: LossFunction) -> float:
        """Do one optimizer step, and look at it; see `Run.step`."""
        if not self._asked.first <= batch.step <= self._asked.last:
            return super().step(batch, objective, loss)
        objective.loss = loss
        if self._asked.replica is not None:
            return self._stopping(batch, objective, self._asked.replica)
        self._check(batch.step, objective)
        began = [tensor.detach().clone() for tensor in self._tensors()]
        self._gradient, self._losses = {}, ()
        mean = super().step(batch, objective, loss)
        with self._put_back(began):
            self._tell(self._found(batch, objective) | {"epoch": batch.epoch, "loss": mean})
        self._between.at("after", *objective.key(batch.step))
        return mean

    def _update(
        self, gradients: Gradients, update: Update | None, again: Callable[[], Gradients] | None
    ) -> tuple[float, int]:
        scale, named = self._precision.scale, self.parts.model.named_parameters()
        self._gradient = {n: p.grad.to_dense() / scale for n, p in named if p.grad is not None}
        self._losses = gradients.losses
        return super()._update(gradients, update, again)

    def _found(self, batch: Batch, objective: Objective) -> dict[str, Any]:
        """Return what is to be told of a step that is done, whose beginning the model holds again."""
        asked, model = self._asked, self.parts.model
        parts = parts_of(len(batch.indices), self._replicas)
        plain = objective.wrapped(self._precision.around)
        examination = Examination(batch.step, model, plain, parts, self._fetcher(batch, objective), self._gradient)
        losses, told = examination.look()
        if self._losses and [loss.hex() for loss in losses] != [loss.hex() for loss in self._losses]:
            raise StepError(
                f"step {batch.step}: the loss function, called again with the same weights and samples, has returned "
                "other losses: nothing that is computed sample by sample would be the step's. "
                "Hint: it keeps something from call to call, or draws from a generator of its own."
            )
        samples, told["agreement"] = examination.samples()
        named = zip(batch.indices.tolist(), samples, strict=True)
        told |= {"step": batch.step, "samples": [{"index": index, **sample} for index, sample in named]}
        if places := [place for place, index in enumerate(batch.indices.tolist()) if index in asked.without]:
            if len(places) == len(samples):
                raise ConfigError(f"step {batch.step} has no sample but those that are left out.")
            told["without"] = examination.without(places)
        first = sorted(range(len(samples)), key=lambda place: order(samples[place], asked.by))
        fetch = self._fetcher(batch, objective)
        told["shown"] = {str(place): shown(fetch(0, [place])) for place in first[: asked.show]}
        return told

    def _fetcher(self, batch: Batch, objective: Objective) -> Callable[[int, Sequence[int]], Any]:
        """Return what fetches places of a batch as a micro-batch, and sets the generators of the replica after it."""
        loader, setting = self._loader, self._setting
        assert isinstance(loader, Loader)
        epochs = loader.sampler.epochs(batch.step)

        def fetch(replica: int, places: Sequence[int]) -> Any:
            chosen = [*places]
            epoch = batch.epoch if epochs is None else epochs[chosen]
            micro = move(loader.fetcher[Task(epoch, batch.indices[chosen])], setting.device)
            key_generators(setting.seed, objective.key(batch.step, replica))
            return micro

        return fetch

    def _follower(self, indices: Indices) -> Callable[[Iterable[Micro]], Iterator[Micro]]:
        follow = super()._follower(indices)
        return lambda micros: self._noted(follow(micros))

    def _micros(self, indices: Indices) -> Iterator[Micro]:
        return self._noted(super()._micros(indices))

    def _noted(self, micros: Iterator[Micro]) -> Iterator[Micro]:
        for micro in micros:
            self._here = micro.replica
            yield micro

    def _check(self, step: int, objective: Objective) -> None:
        """Refuse steps in which single samples have no loss of their own, or cannot be fetched again."""
        why = None
        if not isinstance(self._loader, Loader):
            why = "the data is a stream, of which no sample is read again"
        elif objective.embed is not None:
            why = "the loss is one over the whole batch (embed=), so single samples have none"
        elif self._updates is not None:
            why = "the run has several optimizers"
        if why is not None:
            raise ConfigError(
                f"step {step} cannot be looked at sample by sample: {why}. "
                "Hint: unisono replay --step without --detail compares it, --pdb stops in its loss function."
            )

    def _tensors(self) -> list[Tensor]:
        model = self.parts.model
        return [*model.parameters(), *model.buffers()]

    @contextlib.contextmanager
    def _put_back(self, began: Sequence[Tensor]) -> Iterator[None]:
        """Let the model hold what the step began with, and afterwards what it has led to."""
        ended = [tensor.detach().clone() for tensor in self._tensors()]
        try:
            with torch.no_grad():
                torch._foreach_copy_(self._tensors(), [*began])
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._tensors(), ended)

    def _stopping(self, batch: Batch, objective: Objective, replica: int) -> float:
        """Do a step in which a debugger stops at the first line of a replica's loss function."""
        from pdb import Pdb  # slow to load

        def debugged(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def call(micro: Any) -> Any:
                if self._here != replica:
                    return function(micro)
                self._tell({"step": batch.step, "replica": replica, "is_left": False})
                found = Pdb(nosigint=True).runcall(function, micro)
                if found is None:  # it takes "quit" for the end of the call
                    raise BdbQuit
                return found

            return call

        try:
            wrapped = objective.wrapped(debugged)
            return super().step(batch, wrapped, wrapped.loss)
        except BdbQuit:
            self._tell({"step": batch.step, "replica": replica, "is_left": True})
            raise SystemExit(0) from None

    def _tell(self, found: dict[str, Any]) -> None:
        with Path(self._asked.out).open("a") as file:
            file.write(to_json(found) + "\n")
