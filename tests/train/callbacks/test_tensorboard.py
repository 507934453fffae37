"""What is logged is in TensorBoard's files, by name and step."""

import importlib.util
import warnings

import pytest

from ranks import run_threads
from train.callbacks.small import fit
from unisono.callbacks import LearningRateMonitor, TensorBoard
from unisono.errors import ConfigError

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="needs the extra tensorboard"
)


def scalars(folder):
    """Return what TensorBoard reads there: by name, (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [(each.step, each.value) for each in events.Scalars(name)] for name in events.Tags()["scalars"]}


def first(transport, out):
    """Fit one epoch."""
    return fit([TensorBoard(), LearningRateMonitor()], transport=transport, out=out, epochs=1)[0]["steps"]


@needs_tensorboard
def test_scalars_by_step(tmp_path):
    """Every logged number under its name at its step, by the leader alone; a resumed run goes on in the folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorBoard's own
        run_threads(lambda transport: first(transport, tmp_path), 2)
        fit([TensorBoard(), LearningRateMonitor()], out=tmp_path, epochs=2)
        found = scalars(tmp_path / "tensorboard")
    assert set(found) == {"lr/0", "train/loss", "test_loss", "test_accuracy"}
    assert [step for step, _ in found["train/loss"]] == [2, 4, 5, 6, 8, 10]
    assert [step for step, _ in found["test_loss"]] == [5, 10]
    assert found["lr/0"][0][1] == pytest.approx(0.1)


@needs_tensorboard
def test_a_folder_is_needed():
    """Without a run directory the callback needs one of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ConfigError, match="expected a folder"):
            fit([TensorBoard()])
