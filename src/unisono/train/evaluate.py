"""Evaluation: every sample exactly once, shared out over the ranks, the same bits for any number of them."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unisono.collectives.placement import cut
from unisono.collectives.transport import Transport
from unisono.data.batches import described, move
from unisono.data.loader import Fetcher, Task, fetch_all
from unisono.data.sampler import permute
from unisono.determinism.seeding import mix
from unisono.determinism.switches import checksum, set_generators
from unisono.errors import ConfigError
from unisono.metrics.base import Metric
from unisono.metrics.exchange import merge_over_ranks
from unisono.options.quantities import SAMPLES
from unisono.strategies.hints import hints

BATCH_SIZE = 256
"""Samples per forward pass where nobody has said how many."""

Predict = Callable[[Any], tuple[Tensor, Tensor]]
"""Takes a micro-batch, returns (output, target) as metrics expect them."""


def evaluate(
    model: nn.Module,
    fetcher: Fetcher,
    predict: Predict,
    metrics: Mapping[str, Metric],
    *,
    transport: Transport,
    device: torch.device,
    batch_size: int,
    num_workers: int = 0,
    inference_mode: bool = True,
    alike: bool = False,
    limit: int | None = None,
    part: int | None = None,
) -> dict[str, float]:
    """Return each metric over the whole data set; all ranks call it and get the same numbers.

    The data set is cut into batches of `batch_size` in its own order, and the batches, not the samples, are shared
    out: so no batch's shape depends on the number of ranks. What the model draws is keyed by the batch. Runs without
    gradients in evaluation mode; the model's mode is put back afterwards.

    Args:
        model: Switched to evaluation mode.
        fetcher: The data set, with its collate function and the seed.
        predict: Called once per batch.
        metrics: Reset, updated, merged over the ranks.
        transport: Joins the ranks.
        device: Where batches are moved.
        batch_size: Samples per forward pass; changes bits of float metrics, so it belongs to the comparison.
        num_workers: Processes that fetch.
        inference_mode: ``torch.inference_mode``; False takes the slower ``torch.no_grad``, for models that keep
            tensors they have computed (a cached mask, say) and would use them in training.
        limit: Evaluate only the first so many samples.
        part: Evaluate only so many samples, chosen by the seed, in their order.
        alike: All ranks must call `predict` equally often: those with less to do repeat a batch, which does not count.

    Raises:
        ConfigError: `predict` has returned something else than two values.
    """
    num_samples = min(len(fetcher), part or limit or len(fetcher))
    chosen = None
    if part is not None:
        chosen = np.sort(permute(np.arange(num_samples), len(fetcher), mix(fetcher.seed, "part")))
    num_batches = -(-num_samples // batch_size)
    shares = cut(num_batches, transport.world_size)
    mine = shares[transport.rank]
    numbers = [*mine, *([mine.start % num_batches] * (len(shares[0]) - len(mine) if alike else 0))]
    places = [np.arange(i * batch_size, min((i + 1) * batch_size, num_samples)) for i in numbers]
    tasks = [Task(-1, own if chosen is None else chosen[own]) for own in places]
    for metric in metrics.values():
        metric.reset()
    with evaluation_mode(model), torch.inference_mode() if inference_mode else torch.no_grad():
        fetched = fetch_all(fetcher, tasks, num_workers=num_workers)
        for turn, (number, batch) in enumerate(zip(numbers, fetched, strict=True)):
            set_generators(mix(fetcher.seed, "evaluate", number))
            moved = move(batch, device)
            try:
                output, target = _pair(predict(moved))
                for name, metric in metrics.items() if turn < len(mine) else ():
                    before = None if turn else _beside_state(metric)
                    metric.update(output, target)
                    if before:
                        _check_kept(name, before, _beside_state(metric))
            except Exception as error:
                error.add_note(f"while evaluating batch {number + 1} of {num_batches}: {described(moved)}")
                for hint in hints(error, moved):
                    error.add_note(hint)
                raise
    return merge_over_ranks(metrics, transport)


def _beside_state(metric: Metric) -> dict[str, Any]:
    """Return what a program's own metric counts or collects beside its state: numbers, arrays, containers."""
    if type(metric).__module__.partition(".")[0] == "unisono":
        return {}
    found: dict[str, Any] = {}
    for name, value in vars(metric).items():
        if isinstance(value, Tensor):
            found[name] = checksum([value]) if value.layout is torch.strided else None
        elif isinstance(value, np.ndarray):
            found[name] = value.tobytes()
        elif isinstance(value, int | float | list | dict | set | deque) and not isinstance(value, bool):
            found[name] = repr(value)
    found.pop("state", None)
    return found


def _check_kept(metric: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Refuse (`ConfigError`) a metric that has changed something else than its state."""
    changed = [name for name, value in before.items() if name in after and after[name] != value]
    if changed:
        raise ConfigError(
            f"metric {metric!r} changes its {', '.join(changed)} in update(), which is that of this rank's samples "
            "alone: ranks exchange a metric's state, and nothing else. Hint: keep it in self.state, a list of whole "
            "numbers that are added up over the ranks, and begin with zeros in __init__."
        )


def check_predict(predict: Any, metrics: Any, name: Any) -> None:
    """Refuse (`ConfigError`) a model, or anything else than a function, and metrics without names."""
    if isinstance(predict, nn.Module) or not callable(predict):
        got = f"a model ({type(predict).__name__})" if isinstance(predict, nn.Module) else type(predict).__name__
        raise ConfigError(
            f"expected a function from a micro-batch to (output, target), got {got}. "
            "Hint: run.evaluate(test_set, lambda micro: (model(micro.x), micro.y), metrics)."
        )
    if not isinstance(metrics, Mapping):
        raise ConfigError(
            f"expected metrics by name, got {type(metrics).__name__}. Hint: {{'accuracy': unisono.Accuracy()}}."
        )
    if not isinstance(name, str | None):
        raise ConfigError(f"expected name as text, or None to record nothing, got {name!r:.100}. Hint: name='test'.")


def checked_limit(limit: Any, part: Any) -> int | None:
    """Return `limit`; `ConfigError` where it or `part` is no number of samples, or both are given."""
    if SAMPLES.maybe("part", part) is not None and limit is not None:
        raise ConfigError("limit= takes the first samples, part= some that the seed chooses. Hint: give one of them.")
    found: int | None = SAMPLES.maybe("limit", limit)
    return found


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode inside, and each of its modules back to its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


def _pair(told: Any) -> tuple[Any, Any]:
    if isinstance(told, tuple | list) and len(told) == 2:
        return told[0], told[1]
    got = f"{len(told)} values" if isinstance(told, tuple | list) else f"one {type(told).__name__}"
    raise ConfigError(f"expected (output, target) from predict, got {got}. Hint: return model(micro.x), micro.y.")
