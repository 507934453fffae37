"""What a run joins when it begins and leaves when it ends: the world, torch as runs need it, the run directory."""

import contextlib
import weakref
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, final

import torch.distributed as dist

from unisono.checkpoint.policy import CheckpointPolicy
from unisono.collectives.places import GuardedTransport, enter_world, world_of
from unisono.collectives.process_groups.transport import connect, device_of
from unisono.collectives.shm.live_boards import LiveBoards
from unisono.collectives.transport import Transport
from unisono.determinism.torch_changes import change_torch
from unisono.launchers.worker.live_member import LiveMember, WorldChanged, join
from unisono.strategies.base import Strategy
from unisono.strategies.options import ExactOptions, StrategyOptions
from unisono.system.memory import keep_freed_memory
from unisono.train.guards.checks import check_detail, check_transport
from unisono.train.guards.inside_loss import OBSERVER
from unisono.train.launcher_link import LauncherLink
from unisono.train.loop import Batch
from unisono.train.run_directory.open_runs import claim
from unisono.train.run_directory.record import RunRecord
from unisono.train.run_directory.run_progress import RunProgress
from unisono.world import World

T = TypeVar("T")


@final
class Joined:
    """One rank's place in the world and in the run directory.

    Args:
        transport: As `Run` takes it.
        device: As `Run` takes it.
        options: Of the strategy.
        replicas: As `Run` takes them.
        out: Where the program wants the run to go.
        checkpoints: How they are written and which are kept.
        detail: Whether to keep ``detail.jsonl``.

    Attributes:
        world: That of the launcher, or of the transport that was given.
        device: Of this rank.
        link: Tells the launcher.
        live: Lets the run go on when a rank dies; None where the launcher does not ask for it.
        transport: Joins the ranks.
        claim: This run's use of its directory.
        record: What it has open there.

    Raises:
        ConfigError: The strategy cannot run in this world, the directory cannot be written, or another run uses it.
        WorldError: The launcher's variables are incomplete.
    """

    def __init__(
        self,
        transport: Transport | str,
        device: str | None,
        options: StrategyOptions,
        replicas: int | None,
        out: str | Path | None,
        checkpoints: CheckpointPolicy | None,
        *,
        detail: bool,
    ) -> None:
        check_transport(transport)
        check_detail(detail, options)
        is_process = isinstance(transport, str)
        self.world = world = World.current() if isinstance(transport, str) else world_of(transport)
        self.device = device_of(world, device)
        options.check_start(world.world_size, in_threads=not is_process)
        self._default = world.replicas or options.default_replicas(world.world_size)
        options.place(replicas or self._default, world.world_size)  # refuses before the ranks meet
        self.link = LauncherLink(world, is_process=is_process)
        self.link.note(b"join")
        has_group = dist.is_initialized()
        if isinstance(transport, str):
            is_auto, is_mpi = transport == "auto", transport == "mpi"
            transport = connect(world, device=str(self.device), share_memory=is_auto, mpi=is_mpi)
        self.transport = GuardedTransport(transport)
        self.live = live_of(world, self.transport, transport, options, has_group=has_group) if is_process else None
        self._restore_torch = change_torch(self, OBSERVER)
        keep_freed_memory()
        enter_world(world)
        self.claim = claim(self.transport, world.run_dir, out)
        self.record = RunRecord(self.claim.directory, self.transport, checkpoints, detail=detail)
        self.claim.record = self.record

    def recorded(self, replicas: int | None, threads: int | None) -> tuple[int, int]:
        """Return replicas and threads: those that are asked for, else the recorded run's, else the launcher's."""
        found = self.record.recorded("replicas", "threads")
        return replicas or found[0] or self._default, threads or found[1] or self.world.threads or 1

    def serve(self, run: Any) -> None:
        """Keep a run's `world` and `placement` as they are, when ranks die."""
        checkpoints = self.record.checkpoints
        if self.live is not None:
            busy = "the ranks are writing a checkpoint together"
            self.live.serve(run, lambda: busy if checkpoints is not None and checkpoints.is_being_shared else "")

    def over(self, steps: Generator[Batch]) -> Generator[Batch]:
        """Pass on `steps`, which `leave` ends; signals ask to stop meanwhile."""
        followed = self.link.over(steps, can_save=self.record.path is not None)
        if self.live is not None:
            followed = self.live.over(followed)
        self.claim.steps = weakref.ref(followed)
        return followed

    def leave(self, progress: RunProgress, strategy: Strategy | None) -> None:
        """Close everything, with what the last loop has done kept; safe to call twice."""
        if (steps := self.claim.steps()) is not None:
            steps.close()
        self.link.close()
        self._restore_torch()
        if strategy is not None:
            strategy.close()
        if self.live is not None:
            self.live.close()
        for used in (self.transport, self.record, self.claim, progress):
            used.close()
        enter_world(None)


@final
class Live:
    """What a run needs to go on when a rank dies within a step: the others begin the step again, in a smaller world.

    What a step needs is a pure function of the score, the step and the replica, and of what every rank holds after the
    step before. So the dead rank's replicas are computed by others, and the bits are the same. Whatever happens outside
    of a step's computation (a checkpoint, an evaluation, the end) is not begun again: there the launcher starts anew.

    Args:
        member: Hears the launcher.
        world: Of the start.
        transport: Of the run; its insides are replaced.
        below: What carries at the start.
        options: Of the strategy.
        why_not: Why this run cannot go on without a rank; empty where it can.
    """

    def __init__(
        self, member: LiveMember, world: World, transport: GuardedTransport, below: Transport,
        options: StrategyOptions, why_not: str,
    ) -> None:  # fmt: skip
        self._member, self._world, self._transport, self._options = member, world, transport, options
        self._why_not = why_not
        self._boards = None if self._why_not or below.board is None else LiveBoards(below.board, member)
        self._run: Any = None

    @property
    def is_possible(self) -> bool:
        """Whether this run can go on without a rank at all."""
        return self._boards is not None

    def refuse(self, why_not: str) -> None:
        """Leave it to the launcher to start anew, before the first step."""
        self._why_not, self._boards = why_not, None

    def serve(self, run: Any, refuse: Callable[[], str]) -> None:
        """Keep the `world` and the `placement` of a run as they are; `refuse` says why it cannot go on just now."""
        self._run, self._member.refuse = run, refuse

    def over(self, steps: Generator[T]) -> Generator[T]:
        """Pass on `steps`; from the first one on, deaths can be lived through."""
        with contextlib.closing(steps), contextlib.ExitStack() as leaving:
            for number, batch in enumerate(steps):
                if not number:
                    self._member.open(self._why_not)
                if not number and self._boards is not None:
                    self._boards.watch(is_on=True)
                    leaving.callback(self._member.close)
                    leaving.callback(self._boards.watch, is_on=False)
                yield batch

    @contextlib.contextmanager
    def anchored(self) -> Iterator[None]:
        """Surround what can be begun again; `WorldChanged` comes out of it where it has to be."""
        self._member.is_anchored = True
        try:
            yield
        finally:
            self._member.is_anchored = False

    def move(self) -> None:
        """Go to the new world: transport, world and placement of the run are those of the ranks that are left.

        Raises:
            PeerLost: The launcher ends this world.
        """
        assert self._boards is not None
        with self.anchored():
            while True:
                with contextlib.suppress(WorldChanged):  # one more has died: the next epoch
                    below = self._boards.move()
                    break
        self._transport.replace(below)
        rank, size = below.rank, below.world_size
        self._world = replace(self._world, rank=rank, world_size=size, local_rank=rank, local_world_size=size)
        enter_world(self._world)
        self._run.world = self._world
        self._run.placement[:] = self._options.place(self._run.replicas, size)

    def close(self) -> None:
        """Leave the last world's memory; safe to call twice."""
        if self._boards is not None:
            self._boards.close()


def live_of(
    world: World, transport: GuardedTransport, below: Transport, options: StrategyOptions, *, has_group: bool
) -> Live | None:
    """Return what lets a run go on without a rank; None where its launcher does not ask for it."""
    if world.live is None:
        return None
    try:
        member, is_first = join(world.live, world.rank)
    except OSError:  # a program that a worker has started inherits the variable, not the socket
        return None
    if not is_first:
        why_not = "this process has had another run before"
    elif has_group:
        why_not = "the program has made a process group of its own"
    else:
        why_not = _why_not(below, options)
    return Live(member, world, transport, below, options, why_not)


def _why_not(below: Transport, options: StrategyOptions) -> str:
    if not isinstance(options, ExactOptions):
        return f"the strategy is {options.name}, and only exact has what a lost rank had"
    if options.island_steps is not None:
        return "islands have weights and optimizers of their own, and a lost rank's are lost"
    if options.overlap == "on":
        return "overlap='on' sends gradients from other threads"
    if below.board is None:
        return "the ranks do not share memory"
    return ""
