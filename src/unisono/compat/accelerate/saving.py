"""The part of `Accelerator` that saves and loads."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from unisono.checkpoint import store
from unisono.checkpoint.format import State, tied_names, unique_tensors
from unisono.checkpoint.interchange import export_weights
from unisono.checkpoint.manifest import Facts
from unisono.collectives.leader import leader_says
from unisono.compat.accelerate.loaders import PreparedLoader
from unisono.compat.accelerate.processes import Processes
from unisono.errors import CheckpointError, ConfigError
from unisono.system.directory import Directory
from unisono.train.run_directory.handover import hand_over


class Saving(Processes):
    """What a script calls to keep its state, beside what the run keeps by itself."""

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
        run, turns, progress = self._run, self._turns, self._run._progress
        turns.refuse_within("save_state()")
        parts = run._prepared()
        if output_dir is None:
            if run.directory is None or not progress.is_open:
                raise ConfigError(
                    "expected accelerator.save_state() with a folder, or after a step of a run that has a directory. "
                    "Hint: a folder; or project_dir=, where the run saves by itself too."
                )
            progress._save(parts, may_skip=False)
            return str(run.directory)
        folder = Path(output_dir)
        if run.directory is not None and folder.resolve() == (run.directory / "checkpoints").resolve():
            raise ConfigError(f"{folder} is where the run itself saves. Hint: another folder, or none.")

        def write() -> str:
            facts = Facts(run=turns.run_id, score=progress.score or {})
            folder.mkdir(parents=True, exist_ok=True)
            written = store.write(folder, progress.done, parts.pack(), facts=facts)
            with Directory.open(folder) as home:
                for _, old in store.list_steps(home):  # a state takes the place of the one before, whatever its step
                    if old.name != written.name:
                        store.remove(home, old.name)
            return str(folder)

        return str(leader_says(run.transport, write))

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
        run, turns = self._run, self._turns
        parts = run._prepared()
        place = run.directory and run.directory / "checkpoints" if input_dir is None else Path(input_dir)
        if run._progress.is_open:
            raise ConfigError(f"expected to load a state before the first step, the run stands at step {turns.done}.")
        if place is None:
            raise ConfigError("expected a folder with a state, or a run directory. Hint: the one that was saved to.")

        def read() -> tuple[int, State]:
            path, _ = store.newest_valid(place)
            if path is None:
                raise CheckpointError(f"there is no state in {place}. Hint: a folder that one was saved to.")
            manifest, state = store.read(path)
            facts = {"facts": [manifest.facts.run, manifest.facts.score]}
            return manifest.step, State(tensors=state.tensors, values=state.values | facts)

        step, state = hand_over(run.transport, 0, read)
        run_id, score = state.values.pop("facts")
        parts.unpack(state)
        turns.start_at(step, run_id, score)
        for loader in self._loaders:
            loader.start_at(step, has_rest=input_dir is not None)

    def skip_first_batches(self, dataloader: PreparedLoader, num_batches: int = 0) -> PreparedLoader:
        """Return the loader with so many turns left out of its next pass; of training data, those that are done."""
        return dataloader.skipping(num_batches)

    def save_model(self, model: nn.Module, save_directory: str | Path) -> None:
        """Write a model's weights as ``model.safetensors``, on the main process; see `export_weights`."""
        if not self.is_main_process:
            return
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach() for name, tensor in unique_tensors(model).items()}
        state = State(tensors={"model": tensors}, values={"tied": tied_names(model), "model_extra": {}})
        export_weights(state, Path(save_directory, "model.safetensors"))

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
