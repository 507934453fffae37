"""What a run writes: JSON files (``run``, ``score``, ``environment``, ``result``), ``ledger.jsonl``, ``checkpoints/``.

On request, ``detail.jsonl`` too. Every rank writes its own ``phases/rank-R.jsonl``.

The leader alone touches the other files; what it finds, or why it stops, it tells all ranks. Where hosts have
directories of their own, one rank of each, a keeper, keeps the whole run there (see `directories`). JSON files
are replaced atomically. The directory is private to its owner (0700): checkpoints can leak data.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from unisono.checkpoint import store
from unisono.checkpoint.format import State
from unisono.checkpoint.manifest import Facts
from unisono.checkpoint.policy import CheckpointPolicy
from unisono.collectives.leader import ranks_say
from unisono.collectives.transport import Transport
from unisono.errors import CheckpointError, ConfigError
from unisono.observe.ledger import Entry
from unisono.observe.phases import PhaseClock
from unisono.train.run_directory import adoption
from unisono.train.run_directory.checkpoints import Checkpoints
from unisono.train.run_directory.commitment import FILE_NAME as COMMITMENT
from unisono.train.run_directory.commitment import describe_commitment
from unisono.train.run_directory.directories import find_directories, furthest
from unisono.train.run_directory.files import RunFiles
from unisono.train.run_directory.fork import FILE_NAME as FORK
from unisono.train.run_directory.fork import score_of
from unisono.train.run_directory.handover import bring_files, hand_over
from unisono.train.run_directory.ledgers import Ledgers
from unisono.train.run_directory.lock import RunLock
from unisono.train.run_directory.program import LaunchedProgram

_FROM_A_CLOCK = 10**9  # no directory sees so many launches


@final
class RunRecord:
    """One run directory, as seen by one rank.

    Attributes:
        transport: As given.
        fencing_token: Number of this launch among those of the directory; every checkpoint repeats it.
        result: What ``result.json`` held when the directory was opened; empty where there was none.
        spent: What earlier launches have spent up to the checkpoint gone on from; see `Facts`.
        launches: How many launches the directory has seen, this one included.
        checkpoints: Those in the directory; None where nothing is kept.
        objective: What the steps count, as the score has it; None: the mean over samples, or not known yet.
        ledgers: Those in the directory.
        expects_deaths: Whether the ranks go on when one dies, so that each must be able to go on for the leader.

    Raises:
        ConfigError: The directory cannot be created or written, or another run uses it; said before training starts.
    """

    def __init__(
        self, path: Path | None, transport: Transport, policy: CheckpointPolicy | None = None, *, detail: bool = False,
        joins: int | None = None,
    ) -> None:  # fmt: skip
        self.transport, self._number = transport, transport.rank if joins is None else joins
        self.ledgers, self.expects_deaths = Ledgers(keeps_detail=detail), False
        self._phases: PhaseClock | None = None
        self.fork: dict[str, Any] | None = None
        self._lock: RunLock | None = None
        self._environment: dict[str, Any] | None = None  # to be written once the score has been checked
        self._drift: tuple[dict[str, Any], list[Any], list[str]] | None = None  # environment, past changes, new ones
        self._drifted: dict[str, Any] | None = None  # the environment with all of them, to be written with a first step
        self._program: LaunchedProgram | None = None  # until the first step after a resume
        self.fencing_token, self.launches = 0, 1
        self.result: dict[str, Any] = {}
        self.spent: dict[str, float] = {}
        self._written: dict[str, Any] = {}
        self.objective: Mapping[str, Any] | None = None
        self.path, self._files = path, RunFiles(path)
        self.checkpoints = (
            None if path is None else Checkpoints(path / "checkpoints", transport, policy or CheckpointPolicy())
        )
        self._keeps, self._home = transport.rank == 0 and joins is None, 0
        if joins is None:
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
                    "Hint: choose another --out (out=)."
                )
            return [None if found is None else found[name] for name in names]

        answer: list[int | None] = self._says(self._home, read)
        return answer

    def check_environment(self, environment: dict[str, Any], *, allow_drift: bool) -> None:
        """Compare with the environment of the run; what is new is recorded with the first step here; collective."""

        def check() -> tuple[dict[str, Any] | None, list[str] | None]:
            recorded = self._files.recorded("environment")
            return recorded, adoption.compare_environment(self.path, recorded, environment, allow_drift=allow_drift)

        recorded, lines = self._says(self._home, check)
        is_there = recorded is not None and self._directories.is_shared
        self._environment = None if is_there else recorded or environment | {"drifted": []}
        self._drift = None if lines is None else (environment, recorded.get("drifted", []), lines)

    def resume(self, score: dict[str, Any]) -> tuple[int, State | None]:
        """Check or record the score and return the step and state of the newest valid checkpoint; collective.

        Raises:
            ScoreMismatch: The directory was started with another score; lists each differing field.
            CheckpointError: There are checkpoints but none can be trusted.
        """

        def check() -> tuple[str, Any]:
            recorded, objective = self._files.recorded("score"), None
            if recorded is not None:
                objective = recorded.pop("objective", None)
                adoption.check_score(self.path, recorded, score)
            assert self.checkpoints is not None
            return self._files.run_id(self.checkpoints.opened()), objective

        adoption.compare_scores(self.transport, score)
        if self.path is None or self.checkpoints is None:
            return 0, None
        self.fork = self._says(self._home, lambda: self._files.read(FORK))
        score = score | score_of(self.fork)
        run, self.objective = self._says(self._home, check)
        if self.fork is not None:
            self.objective = self.objective or self.fork.get("objective")
        score = adoption.with_objective(score, self.objective)

        def settle_in() -> dict[str, Any]:
            assert self.checkpoints is not None
            there = self.checkpoints.opened()
            found = adoption.adopt_run(
                self._files, there, run, score, self._environment, is_alone=self._directories.is_shared
            )
            self._written = found["result"]
            program.enter()
            return found | {"token": self.fencing_token}

        self._program = program = LaunchedProgram(self._files)
        told = ranks_say(self.transport, self._keeps, settle_in)
        self._home = max(self._directories.keepers, key=lambda rank: (told[rank]["step"], -rank))
        self.fencing_token = told[0]["token"]
        newest = told[self._home]
        self.result, self.spent = newest["result"], newest["spent"]
        # The token counts the launches of a directory, unless it had to be taken from the clock; see `RunLock`.
        told_launches = int(self.spent.get("launches", 0)) + 1
        self.launches = self.fencing_token if self.fencing_token < _FROM_A_CLOCK else told_launches
        if newest["name"] == "" and (whys := [why for found in told if found for why in found["hopeless"]]):
            raise CheckpointError(whys[0], is_final=True)
        step, state = self._load(run, newest["name"], newest["sha256"]) if newest["name"] else (0, None)
        self.checkpoints.facts = Facts(
            run=run,
            parent_step=step if newest["name"] else None,
            fencing_token=self.fencing_token,
            score=score,
            environment=(self._files.read("environment.json") if self._keeps else None) or {},
        )
        self._drifted = None if self._drift is None else adoption.drifted_from(step, *self._drift)
        home = self._files.directory
        if not self._directories.is_shared:
            bring_files(self.transport, self._home, home, self.ledgers.names, is_kept=self._keeps)
        ranks_say(self.transport, self._keeps, lambda: self.ledgers.open(home, step, newest["head"], self.tell))
        self.checkpoints.before_write = self.ledgers.sync
        if self.expects_deaths and not self._keeps:
            self.ledgers.stand_by(home, step)
        return step, state

    def begin_steps(self, done: int, last: int) -> None:
        """Before a loop with steps: tell where a resume goes on, and what changed in its program; once; collective."""
        program, self._program = self._program, None
        if program is None:
            return
        changed = ranks_say(self.transport, self._keeps, lambda: program.begin(done))[0]
        if done:
            of = f" of {last}" if last < sys.maxsize else ""
            self.tell(f"resumed after step {done}{of}, from its last checkpoint")
        if changed:
            self.tell(changed)

    def settle_objective(self, objective: Mapping[str, Any] | None, done: int) -> None:
        """Take what steps count for the run's, in its first step; compare it in the others (`ScoreMismatch`)."""
        if objective == self.objective:  # as nearly always
            return
        if done or self.objective is not None:
            adoption.refuse_objective(self.objective, objective)
        self.objective = objective
        if self.checkpoints is not None:
            score = adoption.with_objective(self.checkpoints.facts.score, objective)
            self.checkpoints.facts = replace(self.checkpoints.facts, score=score)
            if self._keeps:
                self._files.write("score.json", score)

    def follow_world(self) -> int | None:
        """Let the files follow when ranks have died, also the leader; return the newest checkpoint's step; collective.

        The leader that has died can write nothing any more: its launcher has called the others when the kernel had told
        it of the end, and then all that it had open is closed.

        Raises:
            ConfigError: Another launch has the directory now.
            CheckpointError: Another launch has had it; or a file cannot be written.
        """
        if self.checkpoints is None:
            return None
        self.checkpoints.let_go()
        self.transport.barrier()
        newest: int = self._says(0, self._follow)
        self.checkpoints.has_newest(newest)
        return newest

    def _follow(self) -> int:
        assert self.checkpoints is not None
        if not self._keeps:
            home = self._files.directory
            self._lock = self._lock or RunLock(home, self.fencing_token)
            self.checkpoints.guard = self._lock.check
            environment = self._files.read("environment.json") or {}
            self.checkpoints.facts = replace(self.checkpoints.facts, environment=environment)
            self.ledgers.take_over(home)
            self._keeps = True
        return self.checkpoints.follow_world()

    def _load(self, run: str, name: str, sha256: str) -> tuple[int, State]:
        """Return step and state of a checkpoint: from the directory, or from the rank that has it; collective."""
        assert self.checkpoints is not None
        checkpoints = self.checkpoints
        if self._directories.is_shared:
            return checkpoints.load(run, name, sha256)
        step, state = hand_over(self.transport, self._home, lambda: checkpoints.load(run, name, sha256))
        checkpoints.committed_step = step
        return step, state

    def open_phases(self, phases: PhaseClock) -> None:
        """Let a rank's step phases be written to its own file."""
        if self.path is not None:
            facts = {"launch": self.fencing_token, "rank": self._number, "world_size": self.transport.world_size}
            self._phases = phases
            phases.open(self._files.directory, facts | self.ledgers.found)

    def append(self, entry: Callable[[], Entry]) -> None:
        """Write a step's ledger line (keepers only), made when it is written; raise what the save in flight has met."""
        if self._drifted is not None and self._keeps and self.checkpoints is not None:
            self._files.write("environment.json", self._drifted)
            self.checkpoints.facts = replace(self.checkpoints.facts, environment=self._drifted)
            self._drifted = None
        self.ledgers.append(entry)
        if self.checkpoints is not None:
            self.checkpoints.check()

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Replace ``result.json`` where it says something else (keepers only)."""
        if self._keeps and result != self._written:
            self._files.write("result.json", result)
            self._written = dict(result)

    def commit(self, steps: int, head: str, fingerprint: str) -> None:
        """Write ``commitment.json`` (keepers only)."""
        if self._keeps and self.path is not None:
            home = self._files.directory
            self._files.write(COMMITMENT, describe_commitment(home, steps=steps, head=head, fingerprint=fingerprint))

    def tell(self, text: str) -> None:
        """Say something about the run directory to the person who started the run (leader only, standard error)."""
        if self.transport.rank == 0 and self.path is not None:
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
            for file in (self.ledgers, self._phases, self.checkpoints):
                if file is not None:
                    stack.callback(file.close)

    def _says(self, speaker: int, act: Callable[[], Any]) -> Any:
        return ranks_say(self.transport, self.transport.rank == speaker, act)[speaker]

    def _open_own(self) -> None:
        """Open the directories of all hosts, and find the one that has come furthest; collective."""
        rank = self.transport.rank
        self._keeps = self._directories.keepers[rank] == rank
        if self.checkpoints is not None:
            self.checkpoints.is_shared, self.checkpoints.is_keeper = False, self._keeps

        def open_own() -> list[Any]:
            assert self.checkpoints is not None
            if self.transport.rank:
                self._open()
            steps = store.list_steps(self.checkpoints.opened())
            found = self._files.read("run.json")
            return [str(found["run"]) if found else "", steps[0][0] if steps else 0]

        told = ranks_say(self.transport, self._keeps, open_own)
        self._home = furthest(self.path, {rank: told[rank] for rank in self._directories.keepers})

    def _open(self) -> None:
        self._lock = self._files.open()
        if self._lock is not None and self.checkpoints is not None:
            self.fencing_token = self._lock.token
            self.checkpoints.guard = self._lock.check
            self.checkpoints.run = self._files.directory

    def _enter(self) -> None:
        self._files.enter(writes=self._directories.keepers[self.transport.rank] == self.transport.rank)
        if self.checkpoints is not None:
            self.checkpoints.run, self.checkpoints.is_keeper = self._files.directory, self._keeps
