"""What a worker runs for ``unisono train``: one recipe with its options."""

import importlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from unisono.recipes.catalog import Options

if TYPE_CHECKING:
    import unisono


_OURS = Path(__file__).parent.parent
_PYTHONS = warnings.formatwarning


def execute(options: Options) -> None:
    """Train and evaluate a recipe in the world of this process; results go to the run directory."""
    warnings.formatwarning = _one_line
    importlib.import_module(f"unisono.recipes.{options.recipe}").train(options)


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return a warning as it is shown; one of ours without the line of our code, for the program is ours too."""
    if category is UserWarning and Path(filename).is_relative_to(_OURS):
        return f"unisono: {message}\n"
    return _PYTHONS(message, category, filename, lineno, line)


def fit(
    trainer: "unisono.Trainer",
    options: Options,
    train_set: Any,
    test_set: Any,
    facts: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Train and evaluate as the options say; return what ``result.json`` holds, `facts` of the data in its metrics."""
    chosen: dict[str, Any] = {name: getattr(options, name) for name in ("epochs", "batch_size", "num_workers")}
    result = trainer.fit(train_set, test_set=test_set, **chosen)
    if not facts:
        return result
    trainer.run.record(facts)
    return trainer.run.result()


def spread(num_samples: int, limit: int | None) -> npt.NDArray[np.int64]:
    """Return at most `limit` indices, evenly over the data, so that sorted classes stay balanced."""
    count = num_samples if limit is None else min(limit, num_samples)
    return np.arange(count) * num_samples // count


def thinned(limit: int | None, *arrays: Any) -> list[Any]:
    """Return the rows of arrays that `spread` chooses."""
    if limit is None:
        return list(arrays)  # as they are: memory-mapped ones stay so
    return [array[spread(len(array), limit)] for array in arrays]
