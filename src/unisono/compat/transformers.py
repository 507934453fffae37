"""Hugging Face's ``Trainer`` is not offered over a run; asking for it says why, and what to write instead."""

from typing import Any, NoReturn

from unisono.errors import ConfigError


class Trainer:
    """Refused: its loop cannot be made exact by what it lets a subclass change.

    Raises:
        ConfigError: Always.
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        refuse()


def refuse() -> NoReturn:
    """Say why, and what to do instead."""
    raise ConfigError(
        "transformers.Trainer cannot train exactly: it makes an Accelerator of its own, fetches all batches of a step "
        "before it computes the first one, and ends a step by a count of its own. Hint: the model in a loop with "
        "`from unisono.compat.accelerate import Accelerator`, or run.step (examples/hf_classification.py); or keep "
        "transformers' Trainer under `unisono run`, with the bits it has. See docs/compat.md."
    )
