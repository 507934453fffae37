"""What a run writes: JSON files (``run``, ``score``, ``environment``, ``result``), ``ledger.jsonl``, ``checkpoints/``.

On request, ``detail.jsonl`` too. Every rank writes its own ``phases/rank-R.jsonl``.

The leader alone touches the other files; what it finds, or why it stops, it tells all ranks. Where hosts have
directories of their own, one rank of each, a keeper, keeps the whole run there (see `directories`). JSON files
are replaced atomically. The directory is private to its owner (0700): checkpoints can leak data.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from unisono.checkpoint import store
from unisono.checkpoint.format import State
from unisono.checkpoint.manifest import Facts
from unisono.checkpoint.policy import CheckpointPolicy
from unisono.collectives.leader import ranks_say
from unisono.collectives.transport import Transport
from unisono.determinism.switches import drift
from unisono.errors import CheckpointError, ConfigError, EnvironmentDrift, RankDivergence
from unisono.observe.compare import diff
from unisono.observe.ledger import Detail, Entry, Ledger
from unisono.observe.phases import PhaseClock
from unisono.system.disk import explained
from unisono.train.run_directory.adoption import adopt_run, check_score
from unisono.train.run_directory.checkpoints import Checkpoints
from unisono.train.run_directory.directories import find_directories
from unisono.train.run_directory.files import RunFiles
from unisono.train.run_directory.handover import hand_over, send_bytes
from unisono.train.run_directory.lock import RunLock
from unisono.train.run_directory.program import FILE_NAME as PROGRAM_FILE
from unisono.train.run_directory.program import describe_program

_FROM_A_CLOCK = 10**9  # no directory sees so many launches


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
        result: What ``result.json`` held when the directory was opened; empty where there was none.
        spent: What earlier launches have spent up to the checkpoint gone on from; see `Facts`.
        launches: How many launches the directory has seen, this one included.
        checkpoints: Those in the directory; None where nothing is kept.
        keeps_detail: Whether ``detail.jsonl`` is kept beside the ledger.

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
        self.keeps_detail = detail
        self._lock: RunLock | None = None
        self._environment: dict[str, Any] | None = None  # to be written once the score has been checked
        self.fencing_token, self.launches = 0, 1
        self.result: dict[str, Any] = {}
        self.spent: dict[str, float] = {}
        self._written: dict[str, Any] = {}
        self.path = path
        self._files = RunFiles(path)
        self.checkpoints = (
            None if path is None else Checkpoints(path / "checkpoints", transport, policy or CheckpointPolicy())
        )
        self._keeps, self._home = self._is_leader, 0
        self._says(0, self._open)
        self._directories = find_directories(transport, path)
        ranks_say(transport, True, self._enter)
        if not self._directories.is_shared:
            self._open_own()
        if self._directories.num_hosts > 1 or not self._directories.is_shared:
            self.tell(str(self._directories))

    def recorded(self, *names: str) -> list[int | None]:
        """Return numbers of the recorded score, None where there is none, `ConfigError` if damaged; collective."""

        def read() -> list[int | None]:
            found = self._files.recorded("score")
            if found is not None and not all(type(found.get(name)) is int for name in names):
                raise ConfigError(
                    f"{self.path}/score.json lacks {' or '.join(names)}: it is not what a run writes. "
                    "Hint: choose another --out."
                )
            return [None if found is None else found[name] for name in names]

        answer: list[int | None] = self._says(self._home, read)
        return answer

    def check_environment(self, environment: dict[str, Any], *, allow_drift: bool) -> None:
        """Compare with the run's first launch; `resume` records what is new; collective.

        Raises:
            EnvironmentDrift: A numeric entry differs and `allow_drift` is false.
        """

        def check() -> dict[str, Any] | None:
            recorded = self._files.recorded("environment")
            lines = [] if recorded is None else drift(recorded, environment)
            if lines and not allow_drift:
                raise EnvironmentDrift(
                    f"{self.path} was started in another environment, so its bits would change: {'; '.join(lines)}. "
                    "Hint: --allow-drift (allow_drift=True) goes on and records it."
                )
            is_older = "flags" in environment and "flags" not in (recorded or {})
            if recorded is None or lines or is_older:
                past = [*(recorded or {}).get("drifted", []), *([lines] if lines else [])]
                return environment | {"drifted": past}
            return None if self._directories.is_shared else recorded

        self._environment = self._says(self._home, check)

    def resume(self, score: dict[str, Any]) -> tuple[int, State | None]:
        """Check or record the score and return the step and state of the newest valid checkpoint; collective.

        Raises:
            ScoreMismatch: The directory was started with another score; lists each differing field.
            CheckpointError: There are checkpoints but none can be trusted.
        """

        def check() -> str:
            recorded = self._files.recorded("score")
            if recorded is not None:
                check_score(self.path, recorded, score)
            assert self.checkpoints is not None
            return self._files.run_id(self.checkpoints.opened())

        self._compare_score(score)
        if self.path is None or self.checkpoints is None:
            return 0, None
        run = self._says(self._home, check)

        def settle_in() -> dict[str, Any]:
            assert self.checkpoints is not None
            there = self.checkpoints.opened()
            found = adopt_run(self._files, there, run, score, self._environment, is_alone=self._directories.is_shared)
            self._written = found["result"]
            program = describe_program()
            if program is not None and program != self._files.read(PROGRAM_FILE):
                self._files.write(PROGRAM_FILE, program)
            return found | {"token": self.fencing_token}

        told = ranks_say(self._transport, self._keeps, settle_in)
        self._home = max(self._directories.keepers, key=lambda rank: (told[rank]["step"], -rank))
        self.fencing_token = told[0]["token"]
        newest = told[self._home]
        self.result, self.spent = newest["result"], newest["spent"]
        # The token counts the launches of a directory, unless it had to be taken from the clock; see `RunLock`.
        told_launches = int(self.spent.get("launches", 0)) + 1
        self.launches = self.fencing_token if self.fencing_token < _FROM_A_CLOCK else told_launches
        if newest["name"] == "" and (whys := [why for found in told if found for why in found["hopeless"]]):
            raise CheckpointError(whys[0])
        step, state = self._load(run, newest["name"], newest["sha256"]) if newest["name"] else (0, None)
        if self._keeps:
            self.checkpoints.facts = Facts(
                run=run,
                parent_step=step if newest["name"] else None,
                fencing_token=self.fencing_token,
                score=score,
                environment=self._files.read("environment.json") or {},
            )
        self._bring_ledgers()
        ranks_say(self._transport, self._keeps, lambda: self._open_ledgers(step, newest["head"]))
        return step, state

    def _compare_score(self, score: dict[str, Any]) -> None:
        """Compare the scores of all ranks: the directory has but one; collective."""
        for rank, theirs in enumerate(self._transport.all_gather_json(score)):
            if lines := diff(score, theirs):
                raise RankDivergence(
                    f"rank {self._transport.rank} and rank {rank} run different scores: {'; '.join(lines[:3])}. "
                    "Hint: the same settings and data on all hosts."
                )

    def _load(self, run: str, name: str, sha256: str) -> tuple[int, State]:
        """Return step and state of a checkpoint: from the directory, or from the rank that has it; collective."""
        assert self.checkpoints is not None
        checkpoints = self.checkpoints
        if self._directories.is_shared:
            return checkpoints.load(run, name, sha256)
        step, state = hand_over(self._transport, self._home, lambda: checkpoints.load(run, name, sha256))
        checkpoints.committed_step = step
        return step, state

    def _bring_ledgers(self) -> None:
        """Give every host's directory the ledger of the one that has the checkpoint; collective."""
        if self._directories.is_shared or self.path is None:
            return
        for name in ("ledger.jsonl", *(["detail.jsonl"] if self.keeps_detail else [])):
            file = self.path / name
            is_home = self._transport.rank == self._home
            data = (self._files.directory.read(name) or b"") if is_home else b""
            size = self._transport.all_gather_json(len(data))[self._home]
            data = send_bytes(self._transport, self._home, data, size)
            if self._keeps and not is_home:
                with explained(file, len(data)):
                    self._files.directory.replace(name, data)

    def open_phases(self, phases: PhaseClock) -> None:
        """Let a rank's step phases be written to its own file."""
        if self.path is not None:
            rank, world_size = self._transport.rank, self._transport.world_size
            facts = {"launch": self.fencing_token, "rank": rank, "world_size": world_size}
            self._phases = phases
            phases.open(self._files.directory, facts)

    def _open_ledgers(self, step: int, head: str) -> None:
        assert self.path is not None
        home = self._files.directory
        self._ledger = Ledger(self.path / "ledger.jsonl", step, head=head, home=home)
        assert self.checkpoints is not None
        self.checkpoints.before_write = self._ledger.sync
        if self.keeps_detail:
            self._detail = Ledger(self.path / "detail.jsonl", step, has_gaps=True, home=home)

    def append(self, entry: Callable[[], Entry]) -> None:
        """Write a step's ledger line (keepers only), made when it is written; raise what the save in flight has met."""
        if self._ledger is not None:
            self._ledger.append(entry)
        if self.checkpoints is not None:
            self.checkpoints.check()

    def append_detail(self, detail: Callable[[], Detail]) -> None:
        """Write what a step is made of, where that is kept (keepers only)."""
        if self._detail is not None:
            self._detail.append_now(detail())

    def flush(self) -> str:
        """Write all lines that wait, and return the ledger's head: the chain value after them; empty where none is."""
        if self._ledger is None:
            return ""
        self._ledger.flush()
        return self._ledger.head

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Replace ``result.json`` where it says something else (keepers only)."""
        if self._keeps and result != self._written:
            self._files.write("result.json", result)
            self._written = dict(result)

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
            stack.callback(self._files.close)
            if self._lock is not None:
                stack.callback(self._lock.release)
            for file in (self._ledger, self._detail, self._phases, self.checkpoints):
                if file is not None:
                    stack.callback(file.close)

    def _says(self, speaker: int, act: Callable[[], Any]) -> Any:
        return ranks_say(self._transport, self._transport.rank == speaker, act)[speaker]

    def _open_own(self) -> None:
        """Open the directories of all hosts, and find the one that has come furthest; collective."""
        rank = self._transport.rank
        self._keeps = self._directories.keepers[rank] == rank
        if self.checkpoints is not None:
            self.checkpoints.is_shared, self.checkpoints.is_keeper = False, self._keeps

        def open_own() -> list[Any]:
            assert self.checkpoints is not None
            if not self._is_leader:
                self._open()
            steps = store.list_steps(self.checkpoints.opened())
            found = self._files.read("run.json")
            return [str(found["run"]) if found else "", steps[0][0] if steps else 0]

        told = ranks_say(self._transport, self._keeps, open_own)
        keepers = sorted(set(self._directories.keepers))
        runs = {told[keeper][0]: keeper for keeper in keepers if told[keeper][0]}
        if len(runs) > 1:
            raise ConfigError(
                f"the directories {self.path} of the hosts of ranks {', '.join(map(str, sorted(runs.values())))} hold "
                "different runs. Hint: remove those that do not belong here, or choose another --out."
            )
        self._home = max(keepers, key=lambda keeper: (told[keeper][0] != "", told[keeper][1], -keeper))

    def _open(self) -> None:
        self._lock = self._files.open()
        if self._lock is not None and self.checkpoints is not None:
            self.fencing_token = self._lock.token
            self.checkpoints.guard = self._lock.check
            self.checkpoints.run = self._files.directory

    def _enter(self) -> None:
        self._files.enter(writes=self._directories.keepers[self._transport.rank] == self._transport.rank)
        if self.checkpoints is not None:
            self.checkpoints.run = self._files.directory
