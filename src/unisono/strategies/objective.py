"""What a step minimises: the loss function of a training loop, and what it counts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torch import Tensor, nn

from unisono.errors import ConfigError

LossFunction = Callable[[Any], Tensor]
"""Takes a micro-batch, returns the mean loss over its samples: a tensor of one element with a graph."""

WeightFunction = Callable[[Any], Any]
"""Takes a micro-batch, returns how much its loss counts: one number of at least 0, or a tensor of one element."""
Embed = Callable[[Any], Any]
"""Takes a micro-batch, returns a row for each of its samples: a tensor, or tuples, lists, dictionaries of tensors."""


Wrap = Callable[[Callable[[Any], Any]], Callable[[Any], Any]]


@dataclass(slots=True, eq=False)  # not frozen: steps that ask for the same take one another's
class Objective:
    """What is asked of a step: the mean, or the sum, of what the loss function returns for its micro-batches."""

    loss: LossFunction  #: Called once per micro-batch; with `embed` once, with the rows of the whole batch.
    #: Called after it, with the same micro-batch: what the loss is a mean over (tokens, say). None: samples.
    weight: WeightFunction | None = None
    #: ``mean``: `loss` returns means, and the step's loss is theirs, weighted. ``sum``: `loss` returns sums, which the
    #: step adds up and, where there is a `weight`, divides by the sum of the weights.
    reduction: str = "mean"
    update: str | None = None  #: Of several optimizers the one that steps, by its name; None: there is one.
    number: int = 0  #: How many updates of the batch were before this one.
    #: The parameters of that optimizer, by name; gradients of others stay as they are. None: all.
    trained: Mapping[str, nn.Parameter] | None = None
    embed: Embed | None = None  #: Called twice per micro-batch, where the loss is one over the whole batch; else None.
    again: Callable[[Sequence[Any]], Iterable[Any]] = iter  #: Passes on the micro-batches of a second pass.
    score: dict[str, Any] | None = field(init=False)  #: Of the run's score; None for the mean over samples.

    def __post_init__(self) -> None:
        if self.reduction not in ("mean", "sum"):
            raise ConfigError(f"expected reduction 'mean' or 'sum', got {self.reduction!r}.")
        if self.weight is not None and not callable(self.weight):
            raise ConfigError(
                f"expected weight as a function of a micro-batch, got {type(self.weight).__name__}. "
                "Hint: weight=lambda micro: micro.mask.sum()."
            )
        is_usual = self.weight is None and self.reduction == "mean"
        self.score = None if is_usual else {"weight": self.weight is not None, "reduction": self.reduction}

    def asks(self, weight: WeightFunction | None, reduction: str, update: str | None, embed: Embed | None) -> bool:
        """Whether this is what a step of these settings minimises, but for the loss function."""
        return weight is self.weight and embed is self.embed and reduction == self.reduction and update == self.update

    def amount(self, num_samples: int, total: int, weight: float) -> float:
        """Return the factor of a micro-batch's loss in the sum over the batch, times the batch's samples (`total`)."""
        if self.reduction == "sum":
            return total if self.weight is None else 1
        return num_samples if self.weight is None else weight

    def wrapped(self, wrap: Wrap) -> Self:
        """Return the same objective, whose computing functions of the program are called as `wrap` returns them."""
        return replace(self, loss=wrap(self.loss), embed=None if self.embed is None else wrap(self.embed))

    def watched(self, watch: Wrap) -> Self:
        """Return the same objective, all of whose functions of the program are called as `watch` returns them."""
        weight, embed = (None if each is None else watch(each) for each in (self.weight, self.embed))
        return replace(self, loss=watch(self.loss), weight=weight, embed=embed)

    def key(self, *place: int) -> tuple[int, ...]:
        """Return what names the generators' state in a `place` (step, replica): with the number, from the second on."""
        return (*place, self.number) if self.number else place
