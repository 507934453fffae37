"""The state of a run that a loop of another library's style drives: saved into a folder, and gone on from."""

from pathlib import Path
from typing import final

from torch import nn

from unisono.checkpoint import store
from unisono.checkpoint.format import State, tied_names, unique_tensors
from unisono.checkpoint.interchange import export_weights
from unisono.checkpoint.manifest import Facts
from unisono.collectives.leader import leader_says
from unisono.compat.turns import Turns
from unisono.errors import CheckpointError, ConfigError, StepError
from unisono.system.directory import Directory
from unisono.train.run import Run
from unisono.train.run_directory.handover import hand_over


@final
class States:
    """Saves and loads."""

    def __init__(self, run: Run, turns: Turns, what: str) -> None:
        self._run, self._turns, self._what = run, turns, what

    def save(self, folder: Path | None) -> str:
        """Save the state after the last step, and return where; collective; see `Accelerator.save_state`."""
        run, turns = self._run, self._turns
        turns.refuse_alone(self._what)
        if not turns.is_between:
            raise StepError(
                f"{self._what} was called before optimizer.step() in this turn: there is no state in the middle of a "
                "step. Hint: call it after the update."
            )
        parts, progress = run._prepared(), run._progress
        if folder is None:
            if run.directory is None or not progress.is_open:
                raise ConfigError(
                    f"expected {self._what} with a folder, or after a step of a run that has a directory. "
                    "Hint: a folder; or project_dir=, where the run saves by itself too."
                )
            progress._save(parts, may_skip=False)
            return str(run.directory)

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

    def load(self, folder: Path | None) -> int:
        """Put a state into model, optimizer and the rest, on all ranks, and return its step; collective."""
        run, turns = self._run, self._turns
        parts, place = run._prepared(), folder or (run.directory and run.directory / "checkpoints")
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
        return step


def export(model: nn.Module, folder: Path) -> None:
    """Write a model's weights as ``model.safetensors``; see `export_weights`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach() for name, tensor in unique_tensors(model).items()}
    state = State(tensors={"model": tensors}, values={"tied": tied_names(model), "model_extra": {}})
    export_weights(state, folder / "model.safetensors")
