"""Runs one rank's moves of a step: waits for what a move needs, computes, and hands on what comes out."""

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor

from unisono.collectives.messages import Messages
from unisono.determinism import devices
from unisono.determinism.device_reads import DeviceReads
from unisono.determinism.seeding import mix
from unisono.determinism.switches import set_generators
from unisono.errors import StepError
from unisono.strategies.base import Micro, Shares, StrategyContext
from unisono.strategies.objective import Objective
from unisono.strategies.parts.backward import checked_loss, explained
from unisono.strategies.parts.front import Front, calling
from unisono.strategies.parts.report import StepReport
from unisono.strategies.parts.streams import capture, restore
from unisono.strategies.pipelines.parts import Mesh
from unisono.strategies.pipelines.schedule import Action, plan
from unisono.strategies.pipelines.stage import Stage
from unisono.strategies.pipelines.wire import Parcel, Wire

cached_plan = functools.lru_cache(maxsize=64)(plan)


@dataclass(slots=True)
class Work:
    """One step of one pipeline."""

    step: int  #: 1-based.
    mine: list[int]  #: The replicas of this pipeline that have samples; micro-batch i is the i-th of them.
    shares: Shares  #: Samples and weight of every replica.
    report: StepReport  #: Gets the losses, on the rank that has the last stage.
    objective: Objective  #: What is minimised.
    micros: Iterator[Micro]  #: What it gets, in order; on the first and the last process of a pipeline only.
    reads: DeviceReads | None = None  #: Is asked for what a GPU has to tell of losses; None: it is told at once.
    spans: list[tuple[Any, Any]] = field(default_factory=list)  #: When this rank has computed, see `devices.instant`.
    fetched: dict[int, Micro] = field(default_factory=dict)
    num_fetched: int = 0
    seeds: dict[int, Tensor] = field(default_factory=dict)

    @property
    def busy_s(self) -> float:
        """Seconds in which this rank has computed; a GPU must have been waited for."""
        return math.fsum(itertools.starmap(devices.seconds_between, self.spans))

    def weight(self, micro: int) -> float:
        """Return the share of a micro-batch in the whole batch."""
        return self.shares.weights[self.mine[micro]]

    def explained(self, replica: int) -> contextlib.AbstractContextManager[None]:
        """Return what says of an error of the user's model in which micro-batch it happened."""
        micro = Micro(replica=replica, num_samples=self.shares.sizes[replica], data=None)
        return explained(self.step, micro, len(self.shares.sizes))

    def take(self, number: int, *, is_last_use: bool) -> Micro:
        """Return a micro-batch with its data."""
        while number not in self.fetched:
            micro, expected = next(self.micros, None), self.mine[self.num_fetched]
            if micro is None or micro.replica != expected:
                raise StepError(
                    f"step {self.step}: this rank computes replicas {self.mine}, but got "
                    f"{'no micro-batch' if micro is None else f'that of replica {micro.replica}'} for {expected}."
                )
            self.fetched[self.num_fetched] = micro
            self.num_fetched += 1
        return self.fetched.pop(number) if is_last_use else self.fetched[number]


class _Taken(BaseException):
    """The first stage has what it needs: the rest of the loss function is for the last stage."""


@final
class Executor:
    """Runs the moves of this rank."""

    def __init__(
        self, stages: dict[int, Stage], mesh: Mesh, schedule: str, front: Front, context: StrategyContext,
        messages: Messages | None,
    ) -> None:  # fmt: skip
        self._stages, self._mesh, self._schedule, self._front = stages, mesh, schedule, front
        self._seed, self._device, self._transport = context.seed, context.device, context.transport
        self._last = mesh.num_stages - 1
        self._wire = None if messages is None else Wire(messages, context.device)
        self._here: dict[tuple[int, int], Parcel] = {}  # between stages of this rank: by tag and micro-batch

    def execute(self, work: Work) -> None:
        """Do this rank's part of a step; what it makes is in the stages and in `work`.

        Raises:
            StepError: The loss function does not call the model once, or what it returns is no loss.
            PeerLost: Another rank went away.
        """
        mesh = self._mesh
        for action in cached_plan(self._schedule, mesh.width, mesh.chunks, len(work.mine))[mesh.process]:
            if action.direction == "forward":
                self._forward(work, action)
            else:
                self._backward(work, action)
        if (left := next(work.micros, None)) is not None:
            raise StepError(f"step {work.step}: this rank got replica {left.replica}, which it does not compute.")
        if self._wire is not None:
            self._wire.flush()
            self._transport.bytes_sent += self._wire.bytes_sent
            self._wire.bytes_sent = 0

    def _forward(self, work: Work, action: Action) -> None:
        replica, stage = work.mine[action.micro], self._stages[action.stage]
        arrived = None if action.stage == 0 else self._take(action, action.stage - 1, 2 * action.stage)
        began = devices.instant(self._device)
        set_generators(mix(self._seed, "replica", work.step, replica))
        fresh = capture(self._device)
        autocast: list[str] = []

        def compute() -> Any:
            if arrived is None:
                micro = work.take(action.micro, is_last_use=self._last not in self._stages)
                return self._enter(work, stage, micro, autocast)
            if action.stage == self._last:
                micro = work.take(action.micro, is_last_use=True)
                loss = self._leave(work, stage, micro, arrived)
                if work.reads is None:
                    work.report.note(replica, loss.item())
                else:
                    work.reads.ask([loss.detach()], functools.partial(work.report.note_read, replica, 0.0))
                work.seeds[action.micro] = torch.full_like(loss, work.weight(action.micro))
                return loss
            if arrived.streams:
                restore(arrived.streams, self._device)
            autocast.append(arrived.autocast)
            with under(arrived.autocast, self._device):
                return stage.run_on(arrived)

        with work.explained(replica):
            parcel = stage.forward(action.micro, work.weight(action.micro), arrived, compute)
        if action.stage < self._last:
            after = capture(self._device)
            is_drawn = after != fresh or (arrived is not None and bool(arrived.streams))
            parcel = replace(parcel, autocast=autocast[0], streams=after if is_drawn else b"")
        work.spans.append((began, devices.instant(self._device)))
        if action.stage < self._last:
            self._give(parcel, action, action.stage + 1, 2 * (action.stage + 1))

    def _backward(self, work: Work, action: Action) -> None:
        replica = work.mine[action.micro]
        if action.stage == self._last:
            gradients: tuple[Tensor | None, ...] = (work.seeds.pop(action.micro),)
        else:
            gradients = self._take(action, action.stage + 1, 2 * action.stage + 1).tensors
        began = devices.instant(self._device)
        with work.explained(replica):
            parcel = self._stages[action.stage].backward(action.micro, replica, gradients)
        work.spans.append((began, devices.instant(self._device)))
        if action.stage:
            self._give(parcel, action, action.stage - 1, 2 * (action.stage - 1) + 1)

    def _enter(self, work: Work, stage: Stage, micro: Micro, autocast: list[str]) -> Any:
        """Run the loss function until it calls the model, and then the first stage."""
        taken: list[Any] = []

        def call(*args: Any, **kwargs: Any) -> Any:
            autocast.append(autocast_now(self._device))
            taken.append(stage.run(*args, **kwargs))
            raise _Taken

        with calling(self._front, call), contextlib.suppress(_Taken):
            work.objective.loss(micro.data)
        if len(taken) != 1:
            raise _calls(work.step, len(taken))
        return taken[0]

    def _leave(self, work: Work, stage: Stage, micro: Micro, arrived: Parcel) -> Tensor:
        """Run the loss function, with what the last stage returns for what the model would."""
        calls = 0

        def call(*_: Any, **__: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise _calls(work.step, calls)
            if arrived.streams:
                restore(arrived.streams, self._device)
            return stage.run_on(arrived)

        with calling(self._front, call):
            return checked_loss(work.objective.loss(micro.data), work.step)

    def _take(self, action: Action, stage: int, tag: int) -> Parcel:
        """Wait for what another stage hands this one."""
        if stage in self._stages:
            return self._here.pop((tag, action.micro))
        assert self._wire is not None
        return self._wire.receive(self._mesh.neighbour(stage), tag)

    def _give(self, parcel: Parcel, action: Action, stage: int, tag: int) -> None:
        if stage in self._stages:
            tensors = tuple(None if t is None else t.detach().requires_grad_(t.requires_grad) for t in parcel.tensors)
            self._here[tag, action.micro] = replace(parcel, tensors=tensors)
            return
        assert self._wire is not None
        self._wire.send(parcel, self._mesh.neighbour(stage), tag)


def autocast_now(device: torch.device) -> str:
    """Return the dtype that autocast computes in here, empty where it is off."""
    kind = device.type
    return str(torch.get_autocast_dtype(kind))[6:] if torch.is_autocast_enabled(kind) else ""


def under(autocast: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return the autocast of that dtype; nothing for an empty one."""
    return torch.autocast(device.type, getattr(torch, autocast)) if autocast else contextlib.nullcontext()


def _calls(step: int, count: int) -> StepError:
    return StepError(
        f"step {step}: expected the loss function to call the prepared model once, it did {count} times. "
        "Hint: with the strategy pipeline one call goes through all stages; put more samples into one batch instead."
    )
