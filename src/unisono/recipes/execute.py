"""What a worker runs for ``unisono train``: one recipe with its options."""

import gc
import importlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.recipes.catalog import OWN_CLASSES, Options
from unisono.system.loading import collector_at_rest

if TYPE_CHECKING:  # the launcher needs this file, but not these
    import numpy as np
    import numpy.typing as npt
    from torch import nn
    from torch.optim import Optimizer

    import unisono
    from unisono.recipes.trained.model_file import ModelFile


_OURS = Path(__file__).parent.parent
_PYTHONS = warnings.formatwarning


def execute(options: Options) -> None:
    """Train and evaluate a recipe in the world of this process; results go to the run directory."""
    warnings.formatwarning = _one_line
    with collector_at_rest():
        recipe = importlib.import_module(f"unisono.recipes.{options.recipe}")
    gc.freeze()  # what is loaded stays: it need not be looked at again
    recipe.train(options)


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return a warning as it is shown; one of ours without the line of our code, for the program is ours too."""
    if category is UserWarning and Path(filename).is_relative_to(_OURS):
        return f"unisono: {message}\n"
    return _PYTHONS(message, category, filename, lineno, line)


def fit(
    run: "unisono.Run",
    options: Options,
    model: "nn.Module",
    optimizer: "Optimizer",
    train_set: Any,
    test_set: Any,
    *,
    file: "ModelFile",
    facts: Mapping[str, float] | None = None,
    callbacks: Sequence["unisono.Callback"] = (),
    **settings: Any,
) -> dict[str, Any]:
    """Train and evaluate as the options say, and keep what the model's use needs: how every recipe ends.

    Returns:
        What ``result.json`` holds.
    """
    import unisono
    from unisono.recipes.trained.keep import KeepModelFile

    keeper = KeepModelFile(file, is_told=options.recipe in OWN_CLASSES)
    averages = [] if options.loss_average is None else [unisono.callbacks.LossAverage(options.loss_average)]
    trainer = unisono.Trainer(run, model, optimizer, callbacks=[keeper, *callbacks, *averages], **settings)
    chosen: dict[str, Any] = {name: getattr(options, name) for name in ("epochs", "num_workers", "eval_every")}
    chosen["batch_size"] = options.sizes
    chosen |= {} if options.log_every is None else {"log_every": options.log_every}
    if facts:
        run.record(facts)  # before the first step: they belong to the result, and make no curve
    trainer.fit(train_set, test_set=test_set, last=options.last or "short", **chosen)
    keeper.keep(run)  # of a run that was done already, by an older version perhaps
    return run.result()


def spread(num_samples: int, limit: int | None) -> "npt.NDArray[np.int64]":
    """Return at most `limit` indices, evenly over the data, so that sorted classes stay balanced."""
    import numpy as np

    count = num_samples if limit is None else min(limit, num_samples)
    return np.arange(count) * num_samples // count


def thinned(limit: int | None, *arrays: Any) -> list[Any]:
    """Return the rows of arrays that `spread` chooses."""
    if limit is None:
        return list(arrays)  # as they are: memory-mapped ones stay so
    return [array[spread(len(array), limit)] for array in arrays]
