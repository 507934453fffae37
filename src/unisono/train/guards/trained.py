"""What a trainer is given beside a model and an optimizer: a loss, metrics, callbacks; looked at when it is made."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unisono.collectives.places import check_places
from unisono.errors import ConfigError
from unisono.metrics.base import Metric
from unisono.world import World


def check_trained(run: Any, loss: Any, metrics: Any, callbacks: Any) -> None:
    """Refuse (`ConfigError`) what is no run, a class or a name as the loss, one metric or callback for several."""
    if not hasattr(run, "prepare"):
        raise ConfigError(
            f"expected the run first, got {type(run).__name__}. "
            "Hint: run = unisono.Run(seed=0, replicas=8); unisono.Trainer(run, model, optimizer, loss=...)."
        )
    if isinstance(loss, type) or not callable(loss):
        got = f"the class {loss.__name__}" if isinstance(loss, type) else f"{loss!r:.100}"
        hint = f"loss={loss.__name__}()" if isinstance(loss, type) else "loss=torch.nn.CrossEntropyLoss()"
        raise ConfigError(f"expected loss as a function of output and target, got {got}. Hint: {hint}.")
    if not isinstance(metrics, Mapping | None):
        raise ConfigError(
            f"expected metrics by name, got {type(metrics).__name__}. Hint: metrics={{'accuracy': unisono.Accuracy()}}."
        )
    for name, metric in (metrics or {}).items():
        if isinstance(metric, type):
            kind = metric.__name__
            raise ConfigError(f"expected a metric as {name!r}, got the class {kind}. Hint: {{{name!r}: {kind}()}}.")
    if not isinstance(callbacks, Iterable):
        raise ConfigError(
            f"expected callbacks as a list, got {type(callbacks).__name__}. Hint: callbacks=[...], also of one."
        )
    given = callbacks if isinstance(callbacks, Sequence) else ()
    if given_class := next((callback for callback in given if isinstance(callback, type)), None):
        called = given_class.__name__
        raise ConfigError(f"expected callbacks, got the class {called}. Hint: callbacks=[{called}(...)].")


def check_metrics(metrics: Mapping[str, Any], world: World) -> None:
    """Refuse metrics that cannot run on these ranks (`PlaceError`) or not be merged (`ConfigError`)."""
    objects = {name: each for name, each in metrics.items() if not isinstance(each, type)}
    check_places(objects, world, everywhere=True)
    for name, metric in metrics.items():
        if not isinstance(metric, Metric):
            is_class = isinstance(metric, type)
            kind = metric if is_class else type(metric)
            got, hint = (
                kind.__name__,
                "metrics={'accuracy': unisono.Accuracy()}; for one of your own see docs/metrics.md",
            )
            if kind.__module__.partition(".")[0] == "torchmetrics":
                hint = f"unisono.TorchMetric({got}(...))"
            elif is_class:
                got, hint = f"the class {got}", f"an instance: {got}()"
            raise ConfigError(f"expected {name!r} to inherit unisono.Metric, got {got}. Hint: {hint}.")
