"""Several optimizers in one run: which one an update is for, and what a batch keeps until it is done.

A batch has as many updates as the loop asks for, with `Run.step(batch, loss, update=name)`; it is done when the loop
takes the next one. Until then its micro-batches are kept, and the state is that of no step.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.determinism import optimizer_step
from unisono.errors import StepError
from unisono.observe.detail import detail_of
from unisono.observe.ledger import Details, Entry
from unisono.strategies.base import Gradients, Micro, limit_norm, limit_values
from unisono.strategies.objective import Objective
from unisono.strategies.parts.clipping import Clipping
from unisono.train.steps.loop import Batch, entry_of


@final
class Update:
    """What one of several optimizers does.

    Args:
        optimizer: Of parameters of `model`.
        scheduler: Or None.
        clipping: How its gradients are limited.
        model: All models, in one.

    Attributes:
        trained: Its parameters, by name, in the model's order.
        models: Those with one of them.
    """

    def __init__(self, optimizer: Optimizer, scheduler: Any, clipping: Clipping, model: nn.Module) -> None:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._optimizer, self._scheduler, self._clipping = optimizer, scheduler, clipping
        self.trained = {name: each for name, each in model.named_parameters() if id(each) in held}
        self._others = [each for each in model.parameters() if id(each) not in held]
        self.models = [each for each in model.children() if any(id(one) in held for one in each.parameters())]

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep gradients from all other parameters; those that the program has frozen stay so."""
        kept = [parameter for parameter in self._others if parameter.requires_grad]
        try:
            for parameter in kept:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in kept:
                parameter.requires_grad_(True)

    def apply(self) -> float:
        """Clip, step the optimizer, step its scheduler; return the learning rate that was used (first group)."""
        lr = float(self._optimizer.param_groups[0]["lr"])
        if self._clipping.norm is not None:
            limit_norm(self.trained.values(), self._clipping.norm)
        elif self._clipping.value is not None:
            grads = [each.grad for each in self.trained.values() if each.grad is not None]
            limit_values(grads, self._clipping.value)
        optimizer_step.step(self._optimizer)
        if self._scheduler is not None:
            self._scheduler.step()
        return lr


@final
class Updates:
    """The updates of the batch under way, by the names of their optimizers; `model` is all models in one."""

    def __init__(self, updates: Mapping[str, Update], model: nn.Module) -> None:
        self._updates, self._model = updates, model
        self._done: list[_Done] = []
        self._details: list[dict[str, Any]] = []
        self._kept: list[tuple[Micro, list[int]]] = []

    @property
    def number(self) -> int:
        """How many updates the batch has had."""
        return len(self._done)

    def find(self, objective: Objective) -> tuple[Update, Objective]:
        """Return the update that an objective asks for, and the objective with what the strategy needs to know.

        Raises:
            StepError: There is no optimizer of that name.
        """
        names = sorted(self._updates)
        update = self._updates.get(objective.update or "")
        if update is None:
            raise StepError(
                f"expected update= as one of {names}, got {objective.update!r}. "
                f"Hint: run.step(batch, loss, update={names[0]!r}) names the optimizer that steps."
            )
        return update, replace(objective, number=self.number, trained=update.trained)

    def micros(self, batch: Batch, follow: Callable[[Iterator[Micro]], Iterator[Micro]]) -> Iterator[Micro]:
        """Return the micro-batches of an update: for the first one as they come, for later ones those it has kept.

        Raises:
            StepError: One of them is not what it was.
        """
        if not self._done:
            return self.keeping(batch.micros)
        for micro, versions in self._kept:
            if versions != _versions(micro.data):
                raise StepError(
                    f"step {batch.step}: the micro-batch of replica {micro.replica} was changed in place, and update "
                    f"{self.number + 1} of this batch would see it so. "
                    "Hint: x = micro.x * 2 in place of micro.x.mul_(2), or micro.x.clone() first."
                )
        return follow(micro for micro, _ in self._kept)

    def keep_detail(self, batch: Batch, objective: Objective, gradients: Gradients) -> None:
        """Keep what an update is made of, before it changes the weights."""
        detail = detail_of(batch.step, batch.indices, gradients.losses, self._model, objective.trained)
        self._details.append({"losses": detail.losses, "weights": detail.weights, "gradients": detail.gradients})

    def done(self, objective: Objective, gradients: Gradients, lr: float) -> None:
        """Note that an update is done."""
        self._done.append((str(objective.update), gradients, lr))

    def end(self, batch: Batch) -> tuple[Callable[[], Entry], Callable[[], Details]]:
        """Forget the batch; return its line of the ledger, and its details as far as they were kept."""
        entry, kept = functools.partial(_entry_of, batch, self._done), self._details
        self._done, self._details, self._kept = [], [], []
        return entry, lambda: Details(batch.step, batch.indices.tolist(), kept)

    def keeping(self, micros: Iterator[Micro]) -> Iterator[Micro]:
        """Pass on the micro-batches of an update, and keep them, in place of others, for those of the batch to come."""
        self._kept = []
        for micro in micros:
            self._kept.append((micro, _versions(micro.data)))
            yield micro


_Done = tuple[str, Gradients, float]
"""An update's name, gradients and learning rate."""


def _entry_of(batch: Batch, done: Sequence[_Done]) -> Entry:
    entries = [entry_of(batch, gradients, lr) for _, gradients, lr in done]
    sums = [gradients.checksum for _, gradients, _ in done if not gradients.bad_replicas]
    told = ("loss", "gradient", "weights", "lr")
    return entries[-1]._replace(
        weights=entries[0].weights,
        gradient=f"{sum(sums) % (1 << 64):016x}" if sums else "skipped",
        updates=[
            {"name": name, **{key: getattr(entry, key) for key in told}}
            for (name, *_), entry in zip(done, entries, strict=True)
        ],
    )


def _versions(data: Any) -> list[int]:
    """Return how often each tensor in a micro-batch has been written to."""
    if isinstance(data, Tensor):
        return [] if data.is_inference() else [data._version]
    if isinstance(data, Mapping):
        data = data.values()
    elif hasattr(data, "__dict__"):
        data = vars(data).values()
    elif not isinstance(data, list | tuple):
        return []
    return [version for item in data for version in _versions(item)]
