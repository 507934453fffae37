"""What a trainer logs, as TensorBoard's event files (extra ``tensorboard``, imported when a run starts)."""

from pathlib import Path
from typing import Any, final

from unisono.collectives.places import current_world
from unisono.errors import ConfigError
from unisono.system.loading import check_there, needing
from unisono.train.callbacks.base import Callback, Loop


@final
class TensorBoard(Callback):
    """Write every logged number as a scalar, on the leader.

    A resumed run writes into the same folder; TensorBoard is told to forget what lies after the step it goes on from.

    Args:
        folder: For the event files; None: ``tensorboard`` in the run directory.
    """

    runs_on = "leader"

    def __init__(self, folder: str | Path | None = None) -> None:
        if current_world().is_leader:
            check_there("tensorboard")
        self._folder = None if folder is None else Path(folder)
        self._writer: Any = None

    def on_run_start(self, loop: Loop) -> None:
        """Open the event file; `ConfigError` where TensorBoard is not installed, or there is no folder."""
        with needing("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        folder = self._folder or (loop.run.directory and loop.run.directory / "tensorboard")
        if folder is None:
            raise ConfigError("expected a folder for TensorBoard, got none. Hint: TensorBoard(folder), or Run(out=).")
        writer: Any = SummaryWriter
        self._writer = writer(str(folder), purge_step=loop.step + 1 if loop.step else None)

    def on_log(self, loop: Loop, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, loop.step)
        self._writer.flush()  # a leader that is killed takes nothing with it

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
