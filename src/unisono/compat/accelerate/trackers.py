"""Where ``Accelerator.log`` writes: TensorBoard, or objects of the program's own; on the main process only."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from unisono.compat.accelerate.processes import Processes
from unisono.errors import ConfigError
from unisono.system.loading import needing


@final
class TensorBoard:
    """Event files of TensorBoard (extra ``tensorboard``).

    Args:
        project: A folder of this name is made.
        folder: Where.
        options: Of torch's ``SummaryWriter``.

    Raises:
        ConfigError: TensorBoard is not installed.
    """

    name = "tensorboard"

    def __init__(self, project: str, folder: Path, **options: Any) -> None:
        with needing("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        writer: Any = SummaryWriter
        self.tracker = writer(str(folder / project), **options)

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Write the settings of the program as text."""
        self.tracker.add_text("config", "\n".join(f"    {name}: {value}" for name, value in values.items()))

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Write numbers, texts, and dictionaries of numbers."""
        for name, value in values.items():
            if isinstance(value, str):
                self.tracker.add_text(name, value, global_step=step)
            elif isinstance(value, dict):
                self.tracker.add_scalars(name, value, global_step=step)
            else:
                self.tracker.add_scalar(name, value, global_step=step)
        self.tracker.flush()

    def finish(self) -> None:
        """Close the file."""
        self.tracker.close()


class Tracking(Processes):
    """The part of `Accelerator` that logs."""

    trackers: list[Any]  #: What `log` writes to.

    def ask_trackers(self, log_with: Any, folder: Path | None) -> None:
        """Note what `init_trackers` is to open, names or objects; `ConfigError` for one that is not known."""
        asked = log_with if isinstance(log_with, list | tuple) else [log_with] if log_with is not None else []
        for each in asked:
            if str(each) != "tensorboard" and not callable(getattr(each, "log", None)):
                raise ConfigError(
                    f"expected log_with='tensorboard' or an object with log(values, step=), got {each!r}. Hint: an "
                    "object with a name, log() and finish() that calls wandb, mlflow or another one."
                )
        self._asked, self._folder, self.trackers = asked, folder, []

    def init_trackers(
        self, project_name: str, config: Mapping[str, Any] | None = None, init_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Open the trackers, on the main process.

        Args:
            project_name: What they are kept under.
            config: Settings to be kept too.
            init_kwargs: More for a tracker, by its name.

        Raises:
            ConfigError: TensorBoard is not installed, or there is no folder for its files.
        """
        for each in self._asked if self.is_main_process else ():
            if each == "tensorboard":
                if self._folder is None:
                    raise ConfigError("expected a place for TensorBoard's files. Hint: Accelerator(project_dir=).")
                each = TensorBoard(project_name, self._folder, **(init_kwargs or {}).get("tensorboard", {}))  # noqa: PLW2901
            elif hasattr(each, "start"):
                each.start()
            self.trackers.append(each)
            if config is not None and hasattr(each, "store_init_configuration"):
                each.store_init_configuration(config)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """Return a tracker, or what it wraps; None on other ranks; `ConfigError` for one that is not open."""
        for each in self.trackers:
            if getattr(each, "name", None) == name:
                return each.tracker if unwrap else each
        if self.is_main_process:
            raise ConfigError(f"expected one of the trackers {[each.name for each in self.trackers]}, got {name!r}.")
        return None

    def log(
        self, values: Mapping[str, Any], step: int | None = None, log_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Log values to all trackers, on the main process."""
        for each in self.trackers:
            each.log(values, step=step, **(log_kwargs or {}).get(getattr(each, "name", ""), {}))

    def close_trackers(self) -> None:
        """Finish them all; safe to call twice."""
        while self.trackers:
            if hasattr(each := self.trackers.pop(), "finish"):
                each.finish()
