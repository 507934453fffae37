"""A run's checkpoints as its ranks see them: the leader decides, every rank copies its share, a thread writes it."""

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from torch import Tensor

from unisono.checkpoint import saver, store
from unisono.checkpoint.draft import Draft, explained
from unisono.checkpoint.format import State
from unisono.checkpoint.manifest import FILE_NAME, STATE_FILE, Facts
from unisono.checkpoint.policy import CheckpointPolicy, plan_shards, stem_of
from unisono.checkpoint.snapshot import Place, Snapshot, places_of
from unisono.checkpoint.staging import Files, Staging, bytes_of, is_roomy, taken_by
from unisono.collectives.leader import leader_says, ranks_say
from unisono.collectives.transport import Transport
from unisono.determinism.devices import is_gpu
from unisono.errors import CheckpointError
from unisono.system.directory import Directory

_SHARE_TIMEOUT_S = 1800.0  # for the slowest rank's share
_VISIBLE_S = 60.0  # a network file system may show a directory to another machine only after a while
_RESERVE_FROM_BYTES = 16 << 20  # below, fresh memory costs no time worth a thread


@final
class Checkpoints:
    """The checkpoints of one run directory, as one rank handles them.

    Attributes:
        is_sparse: Whether a step is saved to stay for good.
        run: The run directory, held open; None: `directory` is reached by its path.
        facts: What the next checkpoint belongs to; set by the leader once the run is open.
        before_write: Called by a keeper, in its thread, before anything is written: puts the ledger on the disk.
        committed: Called by a keeper, in its thread, with the step of each checkpoint that is committed.
        guard: Asked just before a commit; raises where another launch has taken over the directory.
        committed_step: Step of the checkpoint that was loaded or that this rank has committed last, 0 for none.
        is_shared: Whether all ranks see this directory; else one rank of each host keeps whole checkpoints.
        is_keeper: Whether this rank commits: the leader, or one rank of each host.
    """

    def __init__(self, directory: Path, transport: Transport, policy: CheckpointPolicy) -> None:
        self._directory = directory
        self._transport, self._policy, self.is_sparse = transport, policy, policy.is_sparse
        self._saver, self._staging = saver.Saver(), Staging()
        self._snapshot: Snapshot | None = None
        self._restless: set[Place] = set()
        self._num_writers = 1
        self._is_doubtful = False  # whether a snapshot has been dropped
        self._home: Directory | None = None
        self.run: Directory | None = None
        self.facts = Facts()
        self.before_write: Callable[[], None] = lambda: None
        self.committed: Callable[[int], object] = bool
        self.guard: store.Guard | None = None
        self.is_shared, self.is_keeper = True, transport.rank == 0
        self.committed_step, self._begun, self._before = 0, (0, ""), 0  # last save: step, name; the step before
        self._is_abandoned = False  # whether ranks that have not written their share are gone

    @property
    def is_copying(self) -> bool:
        """Whether a snapshot waits for `release`."""
        return self._snapshot is not None

    def opened(self) -> Directory:
        """Return the directory of the checkpoints, held open until `close`; a keeper makes it where it is missing."""
        if self._home is None:
            if self.run is not None:
                self._home = self.run.child(self._directory.name, make=self.is_keeper)
            else:
                self._home = Directory.make(self._directory)
        return self._home

    def load(self, run: str, name: str, sha256: str) -> tuple[int, State]:
        """Return step and state of the checkpoint that the leader has verified; `CheckpointError` if it is not here."""
        deadline = time.monotonic() + _VISIBLE_S
        while self._transport.rank and not self._shows(name) and time.monotonic() < deadline:
            time.sleep(0.1)  # nothing tells us when the file system will show it
        manifest, state = store.read_in(self.opened(), name, run)
        if manifest.sha256 != sha256:
            raise CheckpointError(
                f"rank {self._transport.rank} finds another checkpoint at {self._directory / name} than rank 0. "
                "Hint: all ranks need the same file system at this path."
            )
        self.committed_step, self._begun, self._before = manifest.step, (manifest.step, ""), manifest.step
        return manifest.step, state

    def check(self) -> None:
        """Raise the `CheckpointError` that the save in flight has failed with; never waits."""
        self._saver.check()

    def reserve(self, state: Callable[[], State]) -> None:
        """Get the memory that checkpoints are copied to, beside the training, so that the first save need not wait."""
        if not self._policy.in_background or not self._saver.is_idle:
            return
        mine, _ = self._share(state())
        needed = bytes_of(mine)
        if needed >= _RESERVE_FROM_BYTES and is_roomy(taken_by(mine)):
            pinned = any(is_gpu(tensor.device) for part in mine.values() for tensor in part.values())
            self._saver.start(lambda: self._staging.reserve(needed, pinned=pinned))

    def save(
        self,
        step: int,
        state: Callable[[], State],
        *,
        may_skip: bool = False,
        recorded: Callable[[], Sequence[Tensor]] | None = None,
        **facts: Any,
    ) -> bool:
        """Write a checkpoint, and say whether it was begun; collective.

        Returns when this rank's share of the state has been copied, or is held by a `Snapshot`; the writing goes on in
        a thread, unless the policy or the memory at hand is against it. `settle` waits for it.

        Args:
            step: Steps done.
            state: Makes the state; equal on all ranks.
            may_skip: Whether the policy may leave this one out when the one before is still being written.
            recorded: For a copy beside the next step: what its `begin_step` tells the checksum of; None: copy now.
            facts: What its `Facts` tell beyond those of the run: epoch, metrics, the ledger's head, what was spent.

        Raises:
            CheckpointError: This save or the one before failed; the older checkpoints are untouched.
        """
        if may_skip and self._policy.when_busy == "skip":
            is_busy: bool = leader_says(self._transport, lambda: self._saver.is_busy)
            if is_busy:
                return False
        self.settle()
        packed = state()
        mine, num_writers = self._share(packed)
        self._num_writers = num_writers
        begun = ranks_say(self._transport, self.is_keeper, lambda: self._begin(step, packed, mine))
        name, _, _ = begun[self._transport.rank if self.is_keeper else 0]
        if not name:  # begun before a rank died, and whole
            return True
        self._begun, self._before = (step, name), self._begun[0]
        in_background, may_share = (all(told[at] for told in begun if told is not None) for at in (1, 2))
        self._snapshot = None
        if self.is_keeper or mine:
            draft = Draft(step, self.opened(), name)
            source: Files | Snapshot = mine
            if in_background:
                watched = places_of(recorded(), packed) if may_share and recorded is not None else None
                source = self._snapshot = Snapshot(mine, self._staging, self._restless, watched)
        if self.is_keeper:
            own = replace(self.facts, **facts)
            self.facts = replace(self.facts, parent_step=step)
            self._saver.start(lambda: self._commit(draft, source, packed.values, own, num_writers))
        elif mine:
            rank = self._transport.rank
            self._saver.start(lambda: saver.leave_receipt(draft, rank, source))
        if not in_background:
            self.settle()
        return True

    def begin_step(self, weights: int) -> None:
        """Hear the checksum of the weights that a step begins with, as the ledger will tell it."""
        if self._snapshot is not None:
            self._snapshot.expect(weights)

    def release(self) -> None:
        """Return when nothing of the state is still to be copied: weights may be written to at no cost."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.release()

    def save_alone(self, step: int, state: Callable[[], State], **facts: Any) -> Callable[[bool], None]:
        """Write a checkpoint on the leader (or each keeper), now and without the others, which may be gone; return what
        commits it, with True, or drops it.
        """
        self._saver.close()
        self._snapshot = None
        if not self.is_keeper:
            return lambda _: None
        self.before_write()
        own = replace(self.facts, **facts)
        end = saver.write_alone(self.opened(), step, state(), own, self._policy, self.guard)

        def decide(is_kept: bool) -> None:
            end(is_kept)
            if is_kept:
                self.facts = replace(self.facts, parent_step=step)

        return decide

    def settle(self) -> None:
        """Return when the last checkpoint is committed and verified; `CheckpointError` if that failed; collective."""
        failure: CheckpointError | None = None
        if self._transport.rank:
            try:
                self._saver.wait()
            except CheckpointError as error:  # the leader has read it in the receipt, and tells all
                failure = error
        self._transport.barrier()  # every rank has begun its share before the leader waits for it
        leader_says(self._transport, self._saver.wait)
        if failure is not None:
            raise failure
        self.release()

    def close(self) -> None:
        """Finish the save in flight; safe to call twice.

        Raises:
            CheckpointError: It failed; only warned of where another exception is on its way up.
        """
        is_failing = sys.exc_info()[1] is not None
        try:
            self._saver.close()
        except CheckpointError as error:
            if not is_failing:
                raise
            warnings.warn(str(error), stacklevel=2)
        finally:
            self._snapshot, home, self._home = None, self._home, None
            if home is not None:
                home.close()

    def _shows(self, name: str) -> bool:
        """Whether the file system shows a committed checkpoint here."""
        try:
            with self.opened().child(name) as place:
                return place.status(FILE_NAME) is not None
        except FileNotFoundError:
            return False

    def let_go(self) -> None:
        """Finish this rank's share, for the leader who says what comes of it: whole, or dropped where a share lacks."""
        if not self.is_keeper:
            with contextlib.suppress(CheckpointError):
                self._saver.wait()
            self._snapshot = None

    def follow_world(self) -> int:
        """See to the save in flight on the leader, old or new; return the newest checkpoint's step.

        Raises:
            CheckpointError: It was committed, but does not verify.
        """
        step, name = self._begun
        if not self.is_keeper:
            self.is_keeper, home = True, self.opened()
            self.committed_step = step if name and home.status(name) is not None else self._before
            if name and self.committed_step == step:  # perhaps nobody has read it back
                self._saver.start(lambda: store.settle(home, name, self._policy))
        elif self._num_writers > 1 and not self._saver.is_idle:
            self._is_abandoned = True
            try:
                self._saver.wait()
            except CheckpointError:
                if self.committed_step == step:
                    raise
            self._is_abandoned, self._snapshot = False, None
        else:  # the leader's alone, which lives
            return step
        self.facts = replace(self.facts, parent_step=self.committed_step or None)
        return self.committed_step

    def has_newest(self, step: int) -> None:
        """Hear the step of the newest checkpoint, after `follow_world` of the leader."""
        if step != self._begun[0]:
            self._begun, self._before = (step, ""), step

    def _begin(self, step: int, state: State, mine: Files) -> tuple[str, bool, bool]:
        if self.committed_step == step and self._begun[0] == step:
            return "", False, False
        needed = sum(tensor.nbytes for part in state.tensors.values() for tensor in part.values())
        with explained(step, self._directory, needed):
            draft = store.begin(self.opened(), step, needed)
        is_possible = is_roomy(taken_by(mine) - self._staging.num_bytes)
        in_background = self._policy.in_background and is_possible
        return draft.name, in_background, in_background and not self._is_doubtful

    def _share(self, state: State) -> tuple[Files, int]:
        """Return the tensors that this rank writes, by file, and how many ranks write."""
        sizes = {stem: {name: tensor.nbytes for name, tensor in part.items()} for stem, part in state.tensors.items()}
        total = sum(size for part in sizes.values() for size in part.values())
        is_divided = self.is_shared and total >= self._policy.share_from_bytes
        num_writers = self._transport.world_size if is_divided else 1
        if not is_divided and not self.is_keeper:
            return {}, num_writers
        share = plan_shards(sizes, num_writers)[self._transport.rank if is_divided else 0]
        return {
            file: {name: state.tensors[stem_of(file)][name] for name in names} for file, names in share.items()
        }, num_writers

    def _commit(
        self, draft: Draft, source: Files | Snapshot, values: dict[str, Any], facts: Facts, num_writers: int
    ) -> None:
        """Do the keeper's part of a save, in its thread."""
        try:
            mine = source.copied() if isinstance(source, Snapshot) else source
            self.before_write()
            files = saver.write_share(draft, mine)
            files[STATE_FILE] = draft.put(STATE_FILE, [store.encode_values(values)])
            deadline = time.monotonic() + _SHARE_TIMEOUT_S
            theirs, others = saver.collect_receipts(
                draft, range(1, num_writers), lambda: self._is_abandoned or self._saver.is_hopeless(deadline)
            )
            if isinstance(source, Snapshot) and source.differs(others):
                self._drop(draft, facts)
                return
            store.commit(draft, files | theirs, facts, self.guard)
            self.committed_step = draft.step
            self.committed(draft.step)
        except BaseException:
            store.discard(draft)
            raise
        store.settle(draft.home, draft.name, self._policy)

    def _drop(self, draft: Draft, facts: Facts) -> None:
        """Give up a checkpoint whose weights are not those the next step began with; no more copies beside steps."""
        store.discard(draft)
        self._is_doubtful, self.facts = True, replace(self.facts, parent_step=facts.parent_step)
        warnings.warn(
            f"the checkpoint of step {draft.step} is dropped, older ones stay: the copy of its weights, made beside "
            f"step {draft.step + 1}, is not what the ledger says that step began with, and torch knows of no write to "
            "them in between. From now on states are copied before the training goes on. Hint: between steps, change "
            "weights through their tensors, not through an address (ctypes, an extension).",
            stacklevel=2,
        )
