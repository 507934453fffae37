"""What a run writes: ``score.json``, ``environment.json``, ``ledger.jsonl``, ``checkpoints/``, ``result.json``.

The leader alone touches files; what it finds, or why it stops, it tells all ranks. JSON files are replaced
atomically. The directory is private to its owner (0700): checkpoints can leak data.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from unisono.checkpoint import store
from unisono.checkpoint.format import State
from unisono.collectives.transport import Transport
from unisono.determinism import drift
from unisono.errors import ConfigError, EnvironmentDrift, LeaderFailed, ScoreMismatch
from unisono.observe.compare import diff
from unisono.observe.ledger import Entry, Ledger


@final
class RunRecord:
    """One run directory, as seen by one rank.

    Args:
        path: The directory, created when missing; None keeps nothing.
        transport: Joins the ranks; rank 0 is the leader.

    Raises:
        ConfigError: The directory cannot be created or written; said before training starts.
    """

    def __init__(self, path: Path | None, transport: Transport) -> None:
        self._transport = transport
        self._is_leader = transport.rank == 0
        self._ledger: Ledger | None = None
        self._environment: dict[str, Any] | None = None  # to be written once the score has been checked
        self.path = path
        self._leader_says(self._open)

    def recorded(self, *names: str) -> list[int | None]:
        """Return whole numbers from the score of the run that is recorded here, None where there is none; collective.

        Raises:
            ConfigError: ``score.json`` is not what a run writes.
        """

        def read() -> list[int | None]:
            found = self._read("score.json")
            if found is not None and not all(type(found.get(name)) is int for name in names):
                raise ConfigError(
                    f"{self.path}/score.json lacks {' or '.join(names)}: it is not what a run writes. "
                    "Hint: choose another --out."
                )
            return [None if found is None else found[name] for name in names]

        answer: list[int | None] = self._leader_says(read)
        return answer

    def check_environment(self, environment: dict[str, Any], *, allow_drift: bool) -> None:
        """Compare with the run's first launch; `resume` records what is new; collective.

        Raises:
            EnvironmentDrift: A numeric entry differs and `allow_drift` is false.
        """

        def check() -> None:
            recorded = self._read("environment.json")
            lines = [] if recorded is None else drift(recorded, environment)
            if lines and not allow_drift:
                raise EnvironmentDrift(
                    f"{self.path} was started in another environment, so its bits would change: {'; '.join(lines)}. "
                    "Hint: --allow-drift (allow_drift=True) goes on and records it."
                )
            if recorded is None or lines:
                past = [*(recorded or {}).get("drifted", []), *([lines] if lines else [])]
                self._environment = environment | {"drifted": past}

        self._leader_says(check)

    def resume(self, score: dict[str, Any]) -> tuple[int, State | None]:
        """Check or record the score and return the step and state of the newest valid checkpoint; collective.

        Raises:
            ScoreMismatch: The directory was started with another score; lists each differing field.
            CheckpointError: There are checkpoints but none can be trusted.
        """

        def choose() -> list[Any]:
            if self.path is None:
                return ["", []]
            recorded = self._read("score.json")
            if recorded is None:
                self._write("score.json", score)
            elif lines := diff(recorded, score):
                listed = "\n  ".join(lines)
                raise ScoreMismatch(
                    f"{self.path} holds a run with another score:\n  {listed}\n"
                    "Hint: repeat its settings to resume it, or choose another --out for a new run."
                )
            if self._environment is not None:
                self._write("environment.json", self._environment)
            found, complaints = store.newest_valid(self.path / "checkpoints")
            return [str(found or ""), complaints]

        name, complaints = self._leader_says(choose)
        step, state = store.read(Path(name)) if name else (0, None)
        if self._is_leader and self.path is not None:
            for complaint in complaints:
                warnings.warn(f"checkpoint passed over: {complaint}", stacklevel=2)
            self._ledger = Ledger(self.path / "ledger.jsonl", step)
        return step, state

    def append(self, entry: Callable[[], Entry]) -> None:
        """Write a step's ledger line (leader only; the entry is made only where it is written)."""
        if self._ledger is not None:
            self._ledger.append(entry())

    def save(self, step: int, state: Callable[[], State]) -> None:
        """Write a checkpoint after everything that precedes it in the ledger (leader only)."""
        if self._ledger is not None and self.path is not None:
            self._ledger.sync()
            store.write(self.path / "checkpoints", step, state())

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Replace ``result.json`` (leader only)."""
        self._write("result.json", result)

    def tell(self, text: str) -> None:
        """Say something about the run directory to the person who started the run (leader only, standard error)."""
        if self._is_leader and self.path is not None:
            sys.stderr.write(f"unisono: {self.path} {text}\n")

    def close(self) -> None:
        """Close the ledger; safe to call twice."""
        if self._ledger is not None:
            self._ledger.close()

    def _leader_says(self, act: Callable[[], Any]) -> Any:
        """Return on all ranks what `act` returns on the leader; where it fails, all ranks stop with one explanation."""
        answer: Any = None
        failure: Exception | None = None
        if self._is_leader:
            try:
                answer = act()
            except Exception as error:  # noqa: BLE001 - every rank must hear of it; raised again below
                failure = error
        told = self._transport.all_gather_json([answer, failure and f"{type(failure).__name__}: {failure}"])[0]
        if failure is not None:
            raise failure
        if told[1] is not None:
            raise LeaderFailed(f"rank 0 stopped the run: {told[1]}")
        return told[0]

    def _open(self) -> None:
        if self.path is None:
            return
        probe = self.path / f".probe-{os.getpid()}"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"expected a directory that can be written, got {self.path} from --out (out=): {error.strerror}."
            ) from error

    def _read(self, name: str) -> dict[str, Any] | None:
        if self.path is None or not (self.path / name).exists():
            return None
        try:
            content: dict[str, Any] = dict(json.loads((self.path / name).read_text()))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{self.path / name} is not the JSON that a run writes: {error}. Hint: choose another --out."
            ) from error
        return content

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        if self.path is None or not self._is_leader:
            return
        temporary = self.path / f".{name}.tmp"
        with temporary.open("w") as file:
            json.dump(content, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / name)
