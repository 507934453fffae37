"""How often something is done: every so many steps, or every so many epochs (pure)."""

import re
from collections.abc import Callable

from unisono.data.plans.batch_schedule import Cuts
from unisono.errors import ConfigError
from unisono.options.quantities import STEPS, shown

Every = int | str | None
"""Steps as a whole number or ``"500 steps"``; epochs as ``"2 epochs"``; None: every epoch."""

_OF_A_STREAM = 1000  # steps, where nobody has said how many
_SPELLED = re.compile(r"(?:every )?(?:([0-9]{1,30}) )?(step|epoch)s?")


def check_every(**values: Every) -> None:
    """Refuse (`ConfigError`) what `due` could not read."""
    for name, every in values.items():
        _parsed(name, every)


def due(every: Every, cuts: Cuts | None) -> Callable[[int], bool]:
    """Return a function that says whether something is done after a step.

    Args:
        every: How often.
        cuts: Which steps an epoch has; None of a stream.

    Raises:
        ConfigError: Not a whole number above 0, or other words, or epochs where nobody knows their steps (a stream's).
    """
    count, is_epochs = _parsed("every", every)
    if is_epochs and cuts is not None:
        return cuts.every(count)
    if is_epochs and every is not None:
        raise ConfigError(f"expected an interval in steps for a stream, which has no length, got {every!r}.")
    apart = _OF_A_STREAM if every is None else count
    return lambda step: step % apart == 0


def _parsed(name: str, every: Every) -> tuple[int, bool]:
    """Return a number, and whether it counts epochs."""
    if every is None:
        return 1, True
    if isinstance(every, str):
        found = _SPELLED.fullmatch(every.strip())
        if found is None:
            raise ConfigError(f"expected {name} as a number of steps or as '2 epochs', got {shown(every)}.")
        return STEPS.take(name, int(found[1] or 1)), found[2] == "epoch"
    return STEPS.take(f"{name} as '2 epochs' or", every), False
