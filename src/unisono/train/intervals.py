"""How often something is done: every so many steps, or every so many epochs (pure)."""

import re

from unisono.errors import ConfigError
from unisono.options.quantities import STEPS, shown

Every = int | str | None
"""Steps as a whole number or ``"500 steps"``; epochs as ``"2 epochs"``; None: every epoch."""

_OF_A_STREAM = 1000  # steps, where nobody has said how many
_SPELLED = re.compile(r"(?:every )?(?:([0-9]{1,30}) )?(step|epoch)s?")


def check_every(**values: Every) -> None:
    """Refuse (`ConfigError`) what `steps_between` could not read."""
    for name, every in values.items():
        _parsed(name, every)


def steps_between(every: Every, steps_per_epoch: int | None) -> int:
    """Return the steps from one time to the next.

    Example:
        >>> steps_between(50, 120), steps_between("2 epochs", 120), steps_between(None, 120)
        (50, 240, 120)

    Raises:
        ConfigError: Not a whole number above 0, or other words, or epochs where nobody knows their steps (a stream's).
    """
    count, is_epochs = _parsed("every", every)
    if steps_per_epoch is None:
        if every is not None and is_epochs:
            raise ConfigError(f"expected an interval in steps for a stream, which has no length, got {every!r}.")
        return _OF_A_STREAM if every is None else count
    return count * steps_per_epoch if is_epochs else count


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
