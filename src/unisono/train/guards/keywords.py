"""Keywords that people bring along from other libraries' functions, each answered with what to write here (pure)."""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from unisono.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")

_ORDER = (
    "the order follows from seed and epoch, each sample once an epoch, on any number of workers. Hint: leave it out; "
    "shuffle=False of run.loader keeps the data set's order, and torch.utils.data.Subset(dataset, indices) chooses "
    "samples."
)
_FORKED = "loader processes are forked, and live as long as run.steps(). Hint: leave it out."
ANSWERS = {
    "collate_fn": "Hint: collate= is the same, from a list of samples to a micro-batch.",
    "sampler": _ORDER,
    "batch_sampler": _ORDER,
    "shuffle": "training shuffles, evaluation keeps the data set's order. Hint: run.loader(shuffle=False) and "
    "run.steps() for another training order.",
    "generator": "Run(seed=) decides all orders. Hint: leave it out.",
    "drop_last": "no sample is dropped, a last short batch counts as many samples as it has. Hint: leave it out, or "
    "last='drop' in training; last='join' adds the rest to the batch before.",
    "pin_memory": "the run moves micro-batches to its device itself. Hint: leave it out.",
    "pin_memory_device": "the run moves micro-batches to its device itself. Hint: leave it out.",
    "prefetch_factor": "Hint: prefetch= of run.loader is the same; elsewhere leave it out.",
    "persistent_workers": _FORKED,
    "multiprocessing_context": _FORKED,
    "timeout": _FORKED,
    "in_order": "batches always come in order. Hint: leave it out.",
    "worker_init_fn": "what is random in a sample is seeded by seed, epoch and sample, in every process. Hint: leave "
    "it out; what a process opens for itself belongs into the data set's __getitem__.",
    "train_dataloaders": "Hint: the data set itself: fit(train_set, batch_size=..., epochs=...).",
    "val_dataloaders": "Hint: the data set itself: fit(..., test_set=...).",
}
"""By keyword: those of torch's DataLoader, and of Lightning's ``fit``."""


def answers_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function answer keywords that it does not have and others know; all other mistakes are Python's to tell."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in known and name in ANSWERS:
                raise ConfigError(f"{function.__qualname__}() has no {name}=: {ANSWERS[name]}")
        return function(*args, **kwargs)

    return call
