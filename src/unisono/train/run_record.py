"""What a run writes: JSON files (``run``, ``score``, ``environment``, ``result``), ``ledger.jsonl``, ``checkpoints/``.

On request, ``detail.jsonl`` too. Every rank writes its own ``phases/rank-R.jsonl``.

The leader alone touches the other files; what it finds, or why it stops, it tells all ranks. JSON files are replaced
atomically. The directory is private to its owner (0700): checkpoints can leak data.
"""

import contextlib
import json
import os
import sys
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from unisono.checkpoint import store
from unisono.checkpoint.files import replace_synced
from unisono.checkpoint.format import State
from unisono.checkpoint.manifest import Facts
from unisono.checkpoint.policy import CheckpointPolicy
from unisono.collectives.transport import Transport
from unisono.determinism import drift
from unisono.disk import explained
from unisono.errors import ConfigError, EnvironmentDrift, ScoreMismatch
from unisono.observe.compare import diff
from unisono.observe.ledger import Detail, Entry, Ledger
from unisono.observe.phases import PhaseClock
from unisono.train.checkpoints import Checkpoints
from unisono.train.leader import leader_says
from unisono.train.run_lock import RunLock


@final
class RunRecord:
    """One run directory, as seen by one rank.

    Args:
        path: The directory, created when missing; None keeps nothing.
        transport: Joins the ranks; rank 0 is the leader.
        policy: How checkpoints are written and which are kept.
        detail: Keep ``detail.jsonl`` beside the ledger.

    Attributes:
        fencing_token: Number of this launch among those of the directory; every checkpoint repeats it.

    Raises:
        ConfigError: The directory cannot be created or written, or another run uses it; said before training starts.
    """

    def __init__(
        self, path: Path | None, transport: Transport, policy: CheckpointPolicy | None = None, *, detail: bool = False
    ) -> None:
        self._transport = transport
        self._is_leader = transport.rank == 0
        self._ledger: Ledger | None = None
        self._detail: Ledger | None = None
        self._phases: PhaseClock | None = None
        self._keeps_detail = detail
        self._lock: RunLock | None = None
        self._environment: dict[str, Any] | None = None  # to be written once the score has been checked
        self.fencing_token = 0
        self.path = path
        self._checkpoints = (
            None if path is None else Checkpoints(path / "checkpoints", transport, policy or CheckpointPolicy())
        )
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
                return ["", "", [], "", 0]
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
            run = self._run_id()
            found, complaints = store.newest_valid(self.path / "checkpoints", run)
            sha256 = store.verify(found).sha256 if found else ""
            return [run, found.name if found else "", complaints, sha256, self.fencing_token]

        run, name, complaints, sha256, self.fencing_token = self._leader_says(choose)
        if self.path is None or self._checkpoints is None:
            return 0, None
        step, state = self._checkpoints.load(run, name, sha256) if name else (0, None)
        if self._is_leader:
            for complaint in complaints:
                warnings.warn(f"checkpoint passed over: {complaint}", stacklevel=2)
            self._checkpoints.facts = Facts(
                run=run,
                parent_step=step if name else None,
                fencing_token=self.fencing_token,
                score=score,
                environment=self._read("environment.json") or {},
            )
        self._leader_says(lambda: self._open_ledgers(step))
        return step, state

    def open_phases(self, phases: PhaseClock) -> None:
        """Let a rank's step phases be written to its own file, where the directory can be seen from here."""
        if self.path is not None and self.path.is_dir():
            rank, world_size = self._transport.rank, self._transport.world_size
            facts = {"launch": self.fencing_token, "rank": rank, "world_size": world_size}
            self._phases = phases
            phases.open(self.path / "phases" / f"rank-{rank}.jsonl", facts)

    def _open_ledgers(self, step: int) -> None:
        assert self.path is not None
        self._ledger = Ledger(self.path / "ledger.jsonl", step)
        if self._keeps_detail:
            self._detail = Ledger(self.path / "detail.jsonl", step, has_gaps=True)

    def _run_id(self) -> str:
        """Return the id of the run that lives here; checkpoints of another are not its own."""
        assert self.path is not None
        recorded = self._read("run.json")
        if recorded is not None:
            return str(recorded["run"])
        newest, _ = store.newest_valid(self.path / "checkpoints")
        run = uuid.uuid4().hex
        if newest is not None:
            run = store.verify(newest).facts.run
            warnings.warn(f"{self.path / 'run.json'} was missing; written anew from {newest.name}.", stacklevel=2)
        self._write("run.json", {"run": run})
        return run

    def append(self, entry: Callable[[], Entry]) -> None:
        """Write a step's ledger line (leader only; the entry is made only where it is written, and when it is).

        Raises:
            CheckpointError: The save in flight has failed in the meantime.
        """
        if self._ledger is not None:
            self._ledger.append(entry)
        if self._checkpoints is not None:
            self._checkpoints.check()

    def append_detail(self, detail: Callable[[], Detail]) -> None:
        """Write what a step is made of, where that is kept (leader only)."""
        if self._detail is not None:
            self._detail.append_now(detail())

    @property
    def committed_step(self) -> int:
        """Step of the checkpoint that was loaded or committed last, as far as this rank knows; 0 for none."""
        return 0 if self._checkpoints is None else self._checkpoints.committed_step

    def reserve(self, state: Callable[[], State]) -> None:
        """Get the memory for checkpoints beside the training; see `Checkpoints.reserve`."""
        if self._checkpoints is not None:
            self._checkpoints.reserve(state)

    def save(
        self,
        step: int,
        state: Callable[[], State],
        *,
        epoch: int = 0,
        metrics: Mapping[str, float] | None = None,
        may_skip: bool = False,
    ) -> bool:
        """Write a checkpoint after everything that precedes it in the ledger; collective; see `Checkpoints.save`."""
        self._flush_ledger()
        return self._checkpoints is None or self._checkpoints.save(
            step, state, before=self._sync_ledger, epoch=epoch, metrics=metrics, may_skip=may_skip
        )  # fmt: skip

    def save_alone(
        self, step: int, state: Callable[[], State], *, epoch: int = 0, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Write a checkpoint without the other ranks (leader only); see `Checkpoints.save_alone`."""
        self._flush_ledger()
        if self._checkpoints is not None:
            self._checkpoints.save_alone(step, state, before=self._sync_ledger, epoch=epoch, metrics=metrics)

    def settle(self) -> None:
        """Return when no checkpoint is in flight; collective; see `Checkpoints.settle`."""
        if self._checkpoints is not None:
            self._checkpoints.settle()

    def _flush_ledger(self) -> None:
        if self._ledger is not None:
            self._ledger.flush()

    def _sync_ledger(self) -> None:
        if self._ledger is not None:
            self._ledger.sync()

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Replace ``result.json`` (leader only)."""
        self._write("result.json", result)

    def tell(self, text: str) -> None:
        """Say something about the run directory to the person who started the run (leader only, standard error)."""
        if self._is_leader and self.path is not None:
            sys.stderr.write(f"unisono: {self.path} {text}\n")

    def close(self) -> None:
        """Finish the save in flight and close the files; safe to call twice.

        Raises:
            CheckpointError: That save failed; only warned of where another exception is on its way up.
        """
        with contextlib.ExitStack() as stack:  # each is closed, whatever the others do
            if self._lock is not None:
                stack.callback(self._lock.release)
            for file in (self._ledger, self._detail, self._phases, self._checkpoints):
                if file is not None:
                    stack.callback(file.close)

    def _leader_says(self, act: Callable[[], Any]) -> Any:
        return leader_says(self._transport, act)

    def _open(self) -> None:
        if self.path is None:
            return
        probe = self.path / f".probe-{os.getpid()}"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
            self._lock = RunLock(self.path)
            self.fencing_token = self._lock.token
            if self._checkpoints is not None:
                self._checkpoints.guard = self._lock.check
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
        data = (json.dumps(content, indent=2) + "\n").encode()
        with explained(self.path / name, len(data)):
            replace_synced(self.path / name, data)
