"""What a trainer is given beside a model and an optimizer: a loss, metrics, callbacks; looked at when it is made."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unisono.errors import ConfigError


def check_trained(loss: Any, metrics: Any, callbacks: Any) -> None:
    """Refuse (`ConfigError`) a class or a name in place of a loss, and one metric or callback in place of several."""
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
