"""The part of `Accelerator` that saves and loads."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from unisono.compat.accelerate.loaders import PreparedLoader
from unisono.compat.accelerate.processes import Processes
from unisono.compat.states import States, export


class Saving(Processes):
    """What a script calls to keep its state, beside what the run keeps by itself."""

    _states: States
    _loaders: list[PreparedLoader]
    _registered = 0

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Save and restore objects with ``state_dict()`` and ``load_state_dict()``; before the first step.

        Raises:
            ConfigError: An object has no such methods, or steps have begun.
        """
        for each in objects:
            self.run.register(f"custom-{self._registered}", each)
            self._registered += 1

    def save_state(self, output_dir: str | Path | None = None, safe_serialization: bool = True) -> str:
        """Save the state as it stands after the last step, and return where; collective.

        Args:
            output_dir: A folder for it, which keeps the newest; None: the run directory, which is saved as each pass
                ends anyway; what the script does after a pass is not saved there, but done again in a new start.
            safe_serialization: Without effect: nothing is pickled.

        Raises:
            StepError: In the middle of a step.
            ConfigError: There is neither a folder nor a run directory.
            CheckpointError: It cannot be written.
        """
        return self._states.save(None if output_dir is None else Path(output_dir))

    def load_state(self, input_dir: str | Path | None = None) -> None:
        """Put a saved state into all that is prepared, and go on from there; before the first step; collective.

        The next pass over the training data is then the one in which the state was saved.

        Args:
            input_dir: What `save_state` was given; None: the newest of the run directory, which a run goes on from
                anyway. Where that is the state of a pass's end, the next pass is refused (`StepError`).

        Raises:
            CheckpointError: There is no state that can be trusted, or it is of another model.
            ConfigError: Steps have begun, or there is no place.
        """
        step = self._states.load(None if input_dir is None else Path(input_dir))
        for loader in self._loaders:
            loader.start_at(step, has_rest=input_dir is not None)

    def skip_first_batches(self, dataloader: PreparedLoader, num_batches: int = 0) -> PreparedLoader:
        """Return the loader with so many turns left out of its next pass; of training data, those that are done."""
        return dataloader.skipping(num_batches)

    def save_model(self, model: nn.Module, save_directory: str | Path) -> None:
        """Write a model's weights as ``model.safetensors``, on the main process."""
        if self.is_main_process:
            export(model, Path(save_directory))

    def save(self, obj: Any, f: str | Path, safe_serialization: bool = False) -> None:
        """Write an object with ``torch.save``, on the main process."""
        if self.is_main_process:
            torch.save(obj, f)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Return the model's state."""
        return model.state_dict()

    def unwrap_model(self, model: nn.Module, **_: Any) -> nn.Module:
        """Return the model: nothing has been wrapped."""
        return model


def skip_first_batches(dataloader: PreparedLoader, num_batches: int = 0) -> PreparedLoader:
    """Return a prepared loader with so many turns left out of its next pass; see `Accelerator.skip_first_batches`."""
    return dataloader.skipping(num_batches)
