"""What `Trainer.fit` settles before its first step: how many steps there are, and what is evaluated when."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from unisono.data.loader import check_dataset
from unisono.data.sources.stream import Stream
from unisono.errors import ConfigError
from unisono.options.quantities import EPOCHS, SAMPLES, STEPS
from unisono.train.callbacks.base import Callback, name_of
from unisono.train.callbacks.monitored import check_best, check_monitors
from unisono.train.intervals import Every

_SANITY_SAMPLES = 512


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is evaluated after some steps.

    Attributes:
        dataset: On this.
        prefix: Of the scores' names.
        every: How often.
        size: So many samples of it; None: all.
        is_part: Whether the seed chooses them; else they are the first.
        how: More settings of `Trainer.evaluate`.
    """

    dataset: Any
    prefix: str
    every: Every
    size: int | None
    is_part: bool
    how: dict[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """What `Trainer.evaluate` is called with, after the data set."""
        return {**self.how, "prefix": self.prefix, "part" if self.is_part else "limit": self.size}

    @property
    def sanity(self) -> dict[str, Any]:
        """The same on a few samples."""
        few = min(_SANITY_SAMPLES, self.size or _SANITY_SAMPLES)
        return {**self.how, "prefix": self.prefix, "limit": few}

    @property
    def num_samples(self) -> int:
        """How many samples it looks at."""
        return min(len(self.dataset), self.size or len(self.dataset))


def evaluations(
    test_set: Any, eval_every: Every, eval_limit: int | None, part_every: Every, part_samples: int, how: dict[str, Any]
) -> list[Evaluation]:
    """Return the evaluations of a fit: of the part, where there is one, and of all; see `Trainer.fit`.

    Raises:
        ConfigError: The test set is not map-style, or a part of none is to be evaluated.
    """
    if test_set is None and part_every is not None:
        raise ConfigError("part_every= evaluates a part of test_set=, and there is none. Hint: fit(test_set=...).")
    if test_set is None:
        return []
    check_dataset(test_set)
    limit, size = SAMPLES.maybe("eval_limit", eval_limit), SAMPLES.take("part_samples", part_samples)
    found = [Evaluation(test_set, "part_", part_every, size, is_part=True, how=how)] if part_every is not None else []
    return [*found, Evaluation(test_set, "test_", eval_every, limit, is_part=False, how=how)]


def check_waiting(
    callbacks: Sequence[Callback], tests: Sequence[Evaluation], metrics: Iterable[str], best: str | None
) -> None:
    """Find out before the first step what the first evaluation would stumble over; `ConfigError`."""
    names = [test.prefix + name for test in reversed(tests) for name in ("loss", *metrics)]
    check_monitors(callbacks, names)
    check_best(best, callbacks, names)


def checked_end(
    train_set: Any, callbacks: Sequence[Callback], epochs: Any, max_steps: Any
) -> tuple[int | None, int | None]:
    """Return `epochs` and `max_steps` of a fit.

    Raises:
        ConfigError: One is out of range; or a stream is not ended by `max_steps`, or a callback waits for its epochs.
    """
    epochs, max_steps = EPOCHS.maybe("epochs", epochs), STEPS.maybe("max_steps", max_steps)
    if not isinstance(train_set, Stream):
        return epochs, max_steps
    if epochs is not None or max_steps is None:
        raise ConfigError(
            "a stream does not tell beforehand how many steps a pass has, and fit() plans by them. Hint: "
            "fit(stream, max_steps=...) without epochs=; run.steps(loader, epochs=...) in a loop of your own."
        )
    for callback in callbacks:
        for hook in ("on_epoch_start", "on_epoch_end"):
            if getattr(type(callback), hook) is not getattr(Callback, hook):
                raise ConfigError(
                    f"{name_of(callback)} waits for epochs ({hook}), and where a stream's pass ends is seen only in "
                    "the step after it. Hint: a callback that counts steps, in on_step_end; or data with a length."
                )
    return epochs, max_steps
