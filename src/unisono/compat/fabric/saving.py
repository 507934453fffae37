"""The part of `Fabric` that saves and loads: files as Fabric writes them, with the step that they are of."""

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from unisono.collectives.leader import leader_says
from unisono.compat.fabric.processes import Processes
from unisono.compat.fabric.schedules import Schedules
from unisono.compat.parts import PreparedOptimizer
from unisono.errors import CheckpointError, ConfigError
from unisono.system.directory import Directory
from unisono.train.run_directory.handover import send_bytes

_OURS = "unisono"


class Saving(Processes):
    """What a script calls to keep its state, beside what the run keeps by itself."""

    _schedules: Schedules
    _start_at: Callable[[int], None]

    def save(
        self,
        path: str | Path,
        state: Mapping[str, Any],
        filter: Mapping[str, Callable[[str, Any], bool]] | None = None,  # noqa: A002 - Fabric's name
    ) -> None:
        """Save a state to a file with ``torch.save``, on rank 0, whole or not at all; collective.

        Args:
            path: Of the file; its folder is made.
            state: Models, optimizers and others with ``state_dict()``, and plain values, by name.
            filter: Functions of name and value that say what of a part is kept, by the part's name.

        Raises:
            StepError: In the middle of a step.
            PlaceError: In a turn of a training loop that is not the step's last.
            ConfigError: `filter` names what `state` has not.
        """
        turns, run = self._turns, self.unisono
        turns.refuse_within("save(...)")
        if odd := sorted((filter or {}).keys() - state.keys()):
            raise ConfigError(f"expected filters of {sorted(state)}, got one of {', '.join(odd)}.")

        def write() -> None:
            content = {name: _kept(value, (filter or {}).get(name)) for name, value in state.items()}
            known = json.dumps([turns.done, turns.run_id, run._progress.score or {}])
            file, target = io.BytesIO(), Path(path)
            torch.save(content | {_OURS: {"of": known, "schedules": self._schedules.state_dict()}}, file)
            target.parent.mkdir(parents=True, exist_ok=True)
            with Directory.open(target.parent) as home:
                home.replace(target.name, file.getvalue())

        leader_says(run.transport, write)

    def load(
        self,
        path: str | Path,
        state: dict[str, Any] | None = None,
        strict: bool = True,
        *,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Put a saved state into `state`, on all ranks, and return what is left of it; collective.

        With the trained model and its optimizer in `state`, before the first step, the run goes on after the step at
        which it was saved: the next pass over the training data is the one in which that was.

        Args:
            path: What `save`, here or Fabric's own, was given; read on rank 0.
            state: Parts and values by name, which are put in place; None: everything is returned.
            strict: Whether `path` must have all names of `state`, and of the models' tensors.
            weights_only: False is refused: a file that holds more than tensors and plain values could run code.

        Raises:
            CheckpointError: The file cannot be read, holds more, or lacks a name.
            ConfigError: `weights_only` is False.
        """
        content = self._read(Path(path), weights_only)
        ours = content.pop(_OURS, None)
        if state is None:
            return content
        if strict and (missing := sorted(state.keys() - content.keys())):
            raise CheckpointError(f"{path} has no {', '.join(missing)}, but {', '.join(map(str, content))}.")
        parts = []
        for name in [name for name in state if name in content]:
            value, found = state[name], content.pop(name)
            if not hasattr(value, "load_state_dict"):
                state[name] = found
                continue
            value.load_state_dict(found, **({"strict": strict} if isinstance(value, nn.Module) else {}))
            parts.append(getattr(value, "optimizer", value) if isinstance(value, PreparedOptimizer) else value)
        self._go_on(parts, ours, str(path))
        return content

    def load_raw(self, path: str | Path, obj: Any, strict: bool = True, *, weights_only: bool | None = None) -> None:
        """Put the weights in a file, a ``state_dict`` alone, into a model or optimizer; collective; see `load`."""
        obj.load_state_dict(
            self._read(Path(path), weights_only), **({"strict": strict} if isinstance(obj, nn.Module) else {})
        )
        self._go_on([obj], None, str(path))

    def _go_on(self, parts: list[Any], ours: Any, path: str) -> None:
        """Note where a run stands into which a state has been put."""
        optimizer = self._optimizer and self._optimizer.optimizer
        is_model, is_optimizer = (any(each is part for part in parts) for each in (self._trained, optimizer))
        if self.unisono._progress.is_open and (is_model or is_optimizer):
            self._turns.ended_by = f"fabric.load({path!r})"
        elif ours and is_model and is_optimizer:
            step, run_id, score = json.loads(ours["of"])
            self._schedules.find()
            self._schedules.load_state_dict(ours["schedules"])
            self._turns.start_at(step, run_id, score)
            self._start_at(step)

    def _read(self, path: Path, weights_only: bool | None) -> dict[str, Any]:
        if weights_only is False:
            raise ConfigError(
                "weights_only=False could run code that a file holds. Hint: leave it out; where you trust the file, "
                "torch.load(path, weights_only=False) reads it, and load_state_dict() takes its parts."
            )
        transport = self.unisono.transport
        self._turns.refuse_alone("load(...)")
        data = b""

        def read() -> int:
            nonlocal data
            try:
                data = path.read_bytes()
            except OSError as error:
                raise CheckpointError(f"cannot read {path}: {error.strerror or error}.") from error
            return len(data)

        size = leader_says(transport, read)
        data = send_bytes(transport, 0, data, size)
        try:
            content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:  # whatever a file that is cut off, or a stranger's, brings about
            raise CheckpointError(
                f"{path} is not a file of tensors and plain values: {type(error).__name__}: "
                f"{(str(error).splitlines() or [''])[0][:200]}. Hint: what fabric.save() has written, whole."
            ) from error
        if not isinstance(content, dict):
            raise CheckpointError(f"{path} holds a {type(content).__name__}, expected a dictionary.")
        return content


def _kept(value: Any, keep: Callable[[str, Any], bool] | None) -> Any:
    """Return a part's state, or a value as it is, without what is not to be kept."""
    found = value.state_dict() if isinstance(value, nn.Module | Optimizer) or hasattr(value, "state_dict") else value
    return found if keep is None else {name: each for name, each in found.items() if keep(name, each)}
