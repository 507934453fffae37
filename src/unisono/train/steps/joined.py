"""What a run joins when it begins and leaves when it ends: the world, torch as runs need it, the run directory."""

import functools
import weakref
from collections.abc import Generator
from pathlib import Path
from typing import Any, final

import torch.distributed as dist

from unisono.checkpoint.policy import CheckpointPolicy
from unisono.collectives.loopback import LoopbackTransport
from unisono.collectives.places import GuardedTransport, enter_world, world_of
from unisono.collectives.process_groups.transport import connect, device_of
from unisono.collectives.transport import Transport
from unisono.data.batches import move
from unisono.data.loader import Loader
from unisono.determinism.torch_changes import change_torch
from unisono.environment import wants_plain_torch
from unisono.launchers.worker.kept_failure import keep_failures
from unisono.strategies.base import Strategy
from unisono.strategies.options import StrategyOptions
from unisono.system.memory import keep_freed_memory
from unisono.system.messages import tell, warn
from unisono.train.guards.checks import check_detail, check_transport
from unisono.train.guards.inside_loss import OBSERVER
from unisono.train.guards.witness import rate_of
from unisono.train.launcher_link import LauncherLink
from unisono.train.run_directory.newcomers import Newcomers
from unisono.train.run_directory.open_runs import check_out, claim
from unisono.train.run_directory.record import RunRecord
from unisono.train.run_directory.run_progress import RunProgress
from unisono.train.steps.living import live_of, meets_by_gloo
from unisono.train.steps.loop import Batch
from unisono.world import World

_PLAIN = (
    "UNISONO_PLAIN_TORCH is set: torch is left as it is, so backward(), optimizer steps and torch's collectives inside "
    "a loss function are not refused, though they may spoil the result."
)


@final
class Joined:
    """One rank's place in the world and in the run directory.

    Attributes:
        world: That of the launcher, or of the transport that was given.
        device: Of this rank.
        witness: In which share of the steps a replica is computed by two ranks.
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
        witness: float | None,
        detail: bool,
    ) -> None:
        check_transport(transport)
        check_detail(detail, options)
        check_out(out)
        is_process = isinstance(transport, str)
        self.world = world = World.current() if isinstance(transport, str) else world_of(transport)
        self.device = device_of(world, device)
        options.check_start(world.world_size, in_threads=not is_process)
        self.witness = rate_of(witness, world, options)
        self._default = world.replicas or options.default_replicas(world.world_size)
        self._is_exact = options.is_exact
        options.place(replicas or self._default, world.world_size)  # refuses before the ranks meet
        self.link = LauncherLink(world, is_process=is_process)
        self.link.note(b"join")
        has_group = dist.is_initialized()
        transport = world.transport if transport == "auto" else transport
        spans = transport == "auto" and self.device.type == "cpu" and meets_by_gloo(world, options)
        transport = "gloo" if spans else transport
        is_gloo = transport == "gloo" and self.device.type == "cpu"
        if isinstance(transport, str) and world.joins is not None:
            transport = LoopbackTransport()  # it meets the others at its first step
        elif isinstance(transport, str):
            is_auto, is_mpi = transport == "auto", transport == "mpi"
            transport = connect(world, device=str(self.device), share_memory=is_auto, mpi=is_mpi)
        self.transport = GuardedTransport(transport)
        self.live = (
            live_of(
                world, self.transport, transport, options, has_group=has_group, is_gloo=is_gloo, shares_memory=spans
            ) if is_process else None
        )  # fmt: skip
        if wants_plain_torch() and world.is_leader:
            warn(_PLAIN)
        self._restore_torch = change_torch(self, OBSERVER)
        keep_freed_memory()
        enter_world(world, self.transport)
        self.claim = claim(self.transport, world.run_dir, out)
        self.record = RunRecord(self.claim.directory, self.transport, checkpoints, detail=detail, joins=world.joins)
        self.claim.record = self.record
        if self.claim.directory is not None:
            here = weakref.ref(self.record)
            keep_failures(self.claim.directory, world.rank, lambda: getattr(here(), "fencing_token", 0))
        if self.record.checkpoints is not None:
            self.record.checkpoints.committed = self.link.saved  # at once: a kill may come before the step ends

    def recorded(self, replicas: int | None, threads: int | None) -> tuple[int, int]:
        """Return replicas and threads: those that are asked for, else the recorded run's, else the launcher's."""
        found = self.record.recorded("replicas", "threads")
        world, is_told = self.world, replicas or found[0] or self.world.replicas
        if not is_told and self._is_exact and world.world_size > 1 and world.is_leader:
            tell(
                f"replicas= is unset: this run has {self._default} replicas, one for each worker, and its result is "
                f"that of {self._default}. Hint: with replicas={self._default} any number of workers has the same bits."
            )
        return replicas or found[0] or self._default, threads or found[1] or self.world.threads or 1

    def serve(self, run: Any, progress: RunProgress) -> None:
        """Keep a run's `world`, `placement` and files as they are, when ranks die."""
        if self.live is not None:
            newcomers = Newcomers(progress, self.record)
            self.live.serve(run, newcomers)
            self.record.expects_deaths = self.live.is_possible
            if self.world.joins is not None:
                progress.resume = functools.partial(newcomers.take_over, self.live.join)

    def watch(self, stepper: Any, loader: Any) -> None:
        """Let a run's strategy have what its witnesses need, if there are any; else compare the first step's losses."""
        first = stepper.parts.strategy.first_loss
        if self.witness:
            from unisono.train.steps.witness import watch

            watch(self.witness, stepper, loader, self.live)
        elif first is not None and not first.is_over and isinstance(loader, Loader) and self.world.joins is None:
            first.fetch = lambda *place: move(loader.micro_batch(*place, is_apart=True), self.device)

    def over(self, steps: Generator[Batch]) -> Generator[Batch]:
        """Pass on `steps`, which `leave` ends; signals ask to stop meanwhile."""
        followed = self.link.over(steps, can_save=self.record.path is not None)
        if self.live is not None:
            followed = self.live.over(followed)
        self.claim.steps = weakref.ref(followed)
        return followed

    def leave(self, progress: RunProgress, strategy: Strategy | None, error: BaseException | None) -> None:
        """Close everything, with what the last loop has done kept unless it failed with `error`; safe to call twice."""
        if (steps := self.claim.steps()) is not None:
            steps.close()
        progress.early.end(error)
        self.link.close()
        self._restore_torch()
        if strategy is not None:
            strategy.close()
        if self.live is not None:
            self.live.close()
        for used in (self.transport, self.record, self.claim, progress.early):
            used.close()
        enter_world(None)
