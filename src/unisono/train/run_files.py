"""The JSON files of a run directory, and the lock on it: read whole, replaced atomically, or refused with a reason."""

import json
import os
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from unisono.checkpoint import store
from unisono.checkpoint.files import replace_synced
from unisono.disk import explained
from unisono.errors import ConfigError
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
            ConfigError: It is not a JSON object.
        """
        if self._path is None or not (self._path / name).exists():
            return None
        try:
            content: dict[str, Any] = dict(json.loads((self._path / name).read_text()))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{self._path / name} is not the JSON that a run writes: {error}. Hint: choose another --out."
            ) from error
        return content

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace a file.

        Raises:
            CheckpointError: The disk does not take it.
        """
        if self._path is None:
            return
        data = (json.dumps(content, indent=2) + "\n").encode()
        with explained(self._path / name, len(data)):
            replace_synced(self._path / name, data)

    def run_id(self) -> str:
        """Return the id of the run that lives here, a new one where none does; checkpoints of another are not its own.

        Raises:
            CheckpointError: There are checkpoints but none can be trusted, and nothing else names the run.
        """
        assert self._path is not None
        recorded = self.read("run.json")
        if recorded is not None:
            return str(recorded["run"])
        newest, _ = store.newest_valid(self._path / "checkpoints")
        run = uuid.uuid4().hex
        if newest is not None:
            run = store.verify(newest).facts.run
            warnings.warn(f"{self._path / 'run.json'} was missing; written anew from {newest.name}.", stacklevel=2)
        self.write("run.json", {"run": run})
        return run
