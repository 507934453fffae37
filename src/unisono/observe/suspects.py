"""In which order samples are suspected: by their size, their loss, or what they do to their step (pure)."""

import math
from collections.abc import Mapping
from typing import Any

SCALE = 3.0
"""A sample is out of scale whose numbers are so many times larger or smaller than those of others."""
MEASURES = ("suspect", "change", "loss", "gradient")
_KEYS = {"suspect": "loss", "change": "change", "loss": "loss", "gradient": "gradient_norm"}


def order(sample: Mapping[str, Any], by: str) -> tuple[bool, float]:
    """Return where a sample comes, the first ones first; what is no finite number comes before all numbers.

    Args:
        sample: ``loss``, ``gradient_norm``, ``change`` and ``scale`` of it; None or NaN where there is no number.
        by: One of `MEASURES`. ``suspect``: what is out of scale, then by loss.
    """
    value, scale = sample[_KEYS[by]], sample["scale"]
    is_out = by == "suspect" and scale is not None and not 1 / SCALE <= scale <= SCALE and not math.isnan(scale)
    return not is_out, -math.inf if value is None or math.isnan(value) else -value
