"""The JSON files of a run directory, and the lock on it: read whole, replaced atomically, or refused with a reason."""

import contextlib
import errno
import json
import math
import re
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from unisono.checkpoint import store
from unisono.checkpoint.manifest import Manifest, read_manifest
from unisono.checkpoint.values import printable
from unisono.errors import CheckpointError, ConfigError
from unisono.observe.run_json import LOST, object_in
from unisono.system.directory import Directory
from unisono.system.disk import explained, hint_of
from unisono.system.owners import PROBE, adopt
from unisono.train.run_directory.directories import TOKEN
from unisono.train.run_directory.lock import RunLock

_AGAIN = "was missing or empty; written again from the checkpoints."
_LEFT_OVER = re.compile(rf"\..+\.[0-9a-f]{{16}}\.tmp|({re.escape(PROBE)}|{re.escape(TOKEN)})[0-9a-f]{{16,32}}")


@final
class RunFiles:
    """One run directory's small files; without a path nothing is kept, nothing is found."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._directory: Directory | None = None

    @property
    def directory(self) -> Directory:
        """The directory, held open, once `enter` or `open` has been called."""
        assert self._directory is not None
        return self._directory

    def enter(self, *, writes: bool = True) -> None:
        """Open the directory, made where it is missing. With `writes` one that cannot be written is of no use.

        Raises:
            ConfigError: It cannot be created or written, or others than its owner may.
            CheckpointError: A link stands in the place of a directory of the run.
        """
        if self._path is None or self._directory is not None:
            return
        try:
            self._directory = adopt(self._path)
        except CheckpointError:
            raise
        except OSError as error:
            if not writes and error.errno in (errno.EACCES, errno.EROFS):
                self._directory = Directory.open(self._path)
                return
            raise ConfigError(
                f"expected a directory that can be written, got {self._path} from --out (out=): {error.strerror}."
                f"{hint_of(error)}"
            ) from error

    def open(self) -> RunLock | None:
        """As `enter`, and take the directory's lock and clear away what crashes have left."""
        self.enter()
        if self._path is None:
            return None
        with explained(self._path):
            lock = RunLock(self.directory)
            try:
                for name in filter(_LEFT_OVER.fullmatch, self.directory.names()):
                    self.directory.remove(name)
                self.directory.sync()  # the lock's name; another's token must not be forgotten
            except BaseException:
                lock.release()
                raise
        return lock

    def close(self) -> None:
        """Let go of the directory; safe to call twice."""
        if self._directory is not None:
            self._directory.close()

    def read(self, name: str) -> dict[str, Any] | None:
        """Return what a file holds, None where there is none, or an empty one; see `object_in`."""
        directory = self._directory
        if directory is None or self._path is None:
            return None
        return object_in(self._path / name, lambda: directory.read(name), f" Hint: {LOST} (out=).")

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace a file; it is on the disk then, with its name.

        NaN and infinities, which JSON has no words for, become strings that ``float`` reads.
        """
        if self._path is None:
            return
        data = (json.dumps(_finite(content), indent=2, allow_nan=False) + "\n").encode()
        with explained(self._path / name, len(data)):
            self.directory.replace(name, data)

    def run_id(self, checkpoints: Directory) -> str:
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
                    f"{self._path / 'run.json'} names no run: it is not what a run writes. Hint: {LOST} (out=)."
                )
            return run
        newest = self._trusted(checkpoints, None)
        run = uuid.uuid4().hex if newest is None else newest.facts.run
        if newest is not None:
            warnings.warn(f"{self._path / 'run.json'} {_AGAIN}", stacklevel=2)
        self.write("run.json", {"run": run})
        return run

    def recorded(self, name: str) -> dict[str, Any] | None:
        """Return ``score`` or ``environment``, where the file is missing from the newest checkpoint; None: no run yet.

        Raises:
            CheckpointError: There are checkpoints but none can be trusted.
            ConfigError: The file is not what a run writes.
        """
        found = self.read(f"{name}.json")
        if found is not None or self._path is None or self.directory.status("checkpoints") is None:
            return found
        with self.directory.child("checkpoints") as checkpoints:
            if not store.list_steps(checkpoints):
                return None
            newest = self._trusted(checkpoints, self.run_id(checkpoints))
        content: dict[str, Any] = {} if newest is None else getattr(newest.facts, name)
        if not content:
            return None
        warnings.warn(f"{self._path / name}.json {_AGAIN}", stacklevel=2)
        self.write(f"{name}.json", content)
        return content

    def result(self) -> dict[str, Any]:
        """Return ``result.json``, empty where there is none; nothing rests on it, so a damaged one is but warned of."""
        try:
            return self.read("result.json") or {}
        except ConfigError as error:
            warnings.warn(f"ignored, and written again at the end: {error}", stacklevel=2)
            return {}

    def _trusted(self, checkpoints: Directory, run: str | None) -> Manifest | None:
        """Return the manifest of the newest checkpoint that is whole, of a run or, where None, of the only one."""
        newest, _ = store.newest_valid(checkpoints, run)
        if newest is None:
            return None
        runs = _runs_of(checkpoints)
        if run is None and len(runs) > 1:
            assert self._path is not None
            raise ConfigError(
                f"{self._path / 'run.json'} is missing, and the checkpoints there are of {len(runs)} runs "
                f"({', '.join(f'{step} of {name[:8]}' for name, step in runs.items())}). "
                "Hint: move away those that do not belong here, or choose another --out (out=)."
            )
        with checkpoints.child(newest.name) as place:
            return read_manifest(place)


def _runs_of(checkpoints: Directory) -> dict[str, str]:
    """Return the runs whose checkpoints are there, each with the name of its newest one."""
    runs: dict[str, str] = {}
    for _, path in store.list_steps(checkpoints):
        with contextlib.suppress(CheckpointError, OSError), checkpoints.child(path.name) as place:
            runs.setdefault(printable(read_manifest(place).facts.run), path.name)
    return runs


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
