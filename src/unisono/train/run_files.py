"""The JSON files of a run directory, and the lock on it: read whole, replaced atomically, or refused with a reason."""

import contextlib
import json
import math
import os
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from unisono.checkpoint import store
from unisono.checkpoint.files import replace_synced
from unisono.checkpoint.manifest import Manifest, read_manifest
from unisono.checkpoint.values import printable
from unisono.disk import explained
from unisono.errors import CheckpointError, ConfigError
from unisono.train.run_lock import RunLock


@final
class RunFiles:
    """One run directory's small files.

    Args:
        path: The directory; None: nothing is kept, nothing is found.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def open(self) -> RunLock | None:
        """Make the directory where it is missing, and take its lock.

        Raises:
            ConfigError: It cannot be created or written, or another run uses it.
        """
        if self._path is None:
            return None
        probe = self._path / f".probe-{os.getpid()}"
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
            return RunLock(self._path)
        except OSError as error:
            raise ConfigError(
                f"expected a directory that can be written, got {self._path} from --out (out=): {error.strerror}."
            ) from error

    def read(self, name: str) -> dict[str, Any] | None:
        """Return what a file holds, None where there is none.

        Raises:
            ConfigError: It cannot be read, or is not a JSON object.
        """
        if self._path is None or not (self._path / name).exists():
            return None
        try:
            content = json.loads((self._path / name).read_bytes())
            problem = "" if isinstance(content, dict) else f"expected an object, got {type(content).__name__}"
        except (OSError, ValueError, RecursionError) as error:
            problem = str(error)
        if problem:
            raise ConfigError(
                f"{self._path / name} is not the JSON that a run writes: {problem}. Hint: choose another --out."
            )
        found: dict[str, Any] = content
        return found

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace a file; NaN and infinities, which JSON has no words for, become strings that ``float`` reads.

        Raises:
            CheckpointError: The disk does not take it.
        """
        if self._path is None:
            return
        data = (json.dumps(_finite(content), indent=2, allow_nan=False) + "\n").encode()
        with explained(self._path / name, len(data)):
            replace_synced(self._path / name, data)

    def run_id(self) -> str:
        """Return the id of the run that lives here, a new one where none does; checkpoints of another are not its own.

        Raises:
            CheckpointError: There are checkpoints but none can be trusted, and nothing else names the run.
            ConfigError: ``run.json`` is not what a run writes; or it is missing, and the checkpoints are of several.
        """
        assert self._path is not None
        recorded = self.read("run.json")
        if recorded is not None:
            run = recorded.get("run")
            if not isinstance(run, str) or not run:
                raise ConfigError(
                    f"{self._path / 'run.json'} names no run: it is not what a run writes. Hint: remove it, and it is "
                    "written anew from the checkpoints; or choose another --out."
                )
            return run
        newest = self._trusted(None)
        run = uuid.uuid4().hex if newest is None else newest.facts.run
        if newest is not None:
            warnings.warn(f"{self._path / 'run.json'} was missing; written anew from the checkpoints.", stacklevel=2)
        self.write("run.json", {"run": run})
        return run

    def recorded(self, name: str) -> dict[str, Any] | None:
        """Return ``score`` or ``environment``, where the file is missing from the newest checkpoint; None: no run yet.

        Raises:
            CheckpointError: There are checkpoints but none can be trusted.
            ConfigError: The file is not what a run writes.
        """
        found = self.read(f"{name}.json")
        if found is not None or self._path is None or not store.list_steps(self._path / "checkpoints"):
            return found
        newest = self._trusted(self.run_id())
        content: dict[str, Any] = {} if newest is None else getattr(newest.facts, name)
        if not content:
            return None
        warnings.warn(f"{self._path / name}.json was missing; written anew from the checkpoints.", stacklevel=2)
        self.write(f"{name}.json", content)
        return content

    def result(self) -> dict[str, Any]:
        """Return ``result.json``, empty where there is none; nothing rests on it, so a damaged one is but warned of."""
        try:
            return self.read("result.json") or {}
        except ConfigError as error:
            warnings.warn(f"passed over, and written anew at the end: {error}", stacklevel=2)
            return {}

    def _trusted(self, run: str | None) -> Manifest | None:
        """Return the manifest of the newest checkpoint that is whole, of a run or, where None, of the only one."""
        assert self._path is not None
        newest, _ = store.newest_valid(self._path / "checkpoints", run)
        if run is None and (runs := _runs_of(self._path / "checkpoints")) and len(runs) > 1:
            raise ConfigError(
                f"{self._path / 'run.json'} is missing, and the checkpoints there are of {len(runs)} runs "
                f"({', '.join(f'{step} of {name[:8]}' for name, step in runs.items())}). "
                "Hint: move away those that do not belong here, or choose another --out."
            )
        return None if newest is None else store.verify(newest)


def _runs_of(checkpoints: Path) -> dict[str, str]:
    """Return the runs whose checkpoints are there, each with the name of its newest one."""
    runs: dict[str, str] = {}
    for _, path in store.list_steps(checkpoints):
        with contextlib.suppress(CheckpointError):
            runs.setdefault(printable(read_manifest(path).facts.run), path.name)
    return runs


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
