"""Hugging Face's Trainer is refused, with the reasons and what to write instead."""

import pytest

from unisono.compat.transformers import Trainer
from unisono.errors import ConfigError


def test_refused():
    """One error for any way to make it or a subclass, which names both alternatives."""
    with pytest.raises(ConfigError, match=r"fetches all batches.*unisono\.compat\.accelerate.*run\.step"):
        type("Mine", (Trainer,), {})(model=None, args=None)
