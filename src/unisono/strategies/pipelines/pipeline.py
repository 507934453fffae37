"""Pipeline parallel: stages of the model on several processes, micro-batches passing through them, the bits of `exact`.

Ranks form a mesh: ``rank = process * pipelines + pipeline``. The processes of one pipeline have stages of the model and
hand each other activations and gradients; the same stage of different pipelines is averaged between them, along the
canonical tree over replicas. A micro-batch is a replica. Random streams, buffers, weights of losses and the order of
sums are those of `exact`, and what stages hand on keeps its bits and its layout: so the number of stages, the schedule
and the cuts change no bit, and a checkpoint holds plain names and whole tensors.

The loss function runs on the first stage up to the call of the model, and from its begin to its end on the last one.
"""

import contextlib
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.checkpoint import format as checkpoint_format
from unisono.checkpoint.format import State
from unisono.determinism.device_reads import reads_of
from unisono.determinism.devices import carried
from unisono.determinism.switches import Checksum, add_checksums, checksum
from unisono.errors import StepError
from unisono.strategies.base import Gradients, Micro, StrategyContext, check_reached, norms_of, scale_gradients
from unisono.strategies.objective import Objective
from unisono.strategies.parts.drift import compare
from unisono.strategies.parts.front import Front, calling
from unisono.strategies.parts.report import RankReport, StepReport
from unisono.strategies.parts.whole import SpreadStrategy, Whole, gather
from unisono.strategies.pipelines.evaluation import Reader
from unisono.strategies.pipelines.executor import Executor, Work
from unisono.strategies.pipelines.options import PipelineOptions
from unisono.strategies.pipelines.parts import Mesh, claim, cut_model, release
from unisono.strategies.pipelines.schedule import bubble


@dataclass(slots=True)
class Times:
    """How busy the processes have been, over all steps."""

    busy_s: float = 0.0  #: Seconds of computing, the mean over the processes.
    span_s: float = 0.0  #: Seconds from the first move to the last one of the slowest process.
    bubble_s: float = 0.0  #: Of these, those that must be idle by the formula.


@final
class Pipeline(SpreadStrategy):
    """See the module."""

    options: PipelineOptions

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: PipelineOptions
    ) -> None:
        super().__init__(model, optimizer, context, options)
        self._mesh = Mesh(self.transport.rank, *options.mesh(self.transport.world_size), options.num_stages)
        self._rows = options.rows(context.replicas, self.transport.world_size)
        self._parts = cut_model(model, options)
        messages = self.transport.messages() if self.transport.world_size > 1 else None
        self._stages = claim(self._parts, self._mesh, messages)
        own = {id(parameter) for stage in self._stages.values() for parameter in stage.parameters.values()}
        self._foreign = [parameter for parameter in model.parameters() if id(parameter) not in own]
        self.front: Front = Front(model, self._called_outside)
        #: What a step on a GPU has to tell, which the CPU waits for once; None: it is told at once.
        self._reads, self._checksum = reads_of(model.parameters()), Checksum()
        self._executor = Executor(self._stages, self._mesh, options.schedule, self.front, context, messages)
        self._reader = Reader(self._stages, self._mesh, context.device, messages)
        self.times = Times()  #: How busy the processes have been.
        release(self._foreign, optimizer)
        fewest = min(len(row) for row in self._rows)
        if fewest < self._mesh.width and self.transport.rank == 0:
            warnings.warn(
                f"strategy pipeline: micro-batches {fewest} for {self._mesh.width} processes leave "
                f"{bubble(self._mesh.width, self._mesh.chunks, fewest):.0%} of the time idle. "
                f"Hint: --micro-batches {4 * self._mesh.width} or more.",
                stacklevel=2,
            )

    def compute_gradients(
        self, step: int, micros: Iterable[Micro], num_samples: int, objective: Objective
    ) -> Gradients:
        self.whole = None
        self.transport.step = step
        shares = self.shares(num_samples)
        mine = [replica for replica in self._rows[self._mesh.pipeline] if replica < shares.leaves]
        report, reads = self._start_step(shares.leaves), self._reads
        found = self._look_at_weights()
        work = Work(step, mine, shares, report, objective, iter(micros), reads)
        began = time.perf_counter()
        self._executor.execute(work)
        span_s = time.perf_counter() - began
        for stage in self._stages.values():
            stage.finish_sum(self._rows)
        if reads is not None:
            reads.read()
        weights, gradient = found[0], add_checksums(stage.gradient_sum for stage in self._stages.values())
        busy_ns, span_ns = int(work.busy_s * 1e9), int(span_s * 1e9)
        own = RankReport(step, weights, gradient, is_stop_asked=self.is_stop_asked(), busy_ns=busy_ns, span_ns=span_ns)
        told = report.merge(self.transport, own)
        compare([rank.head for rank in told], self._weights(), self.transport, self._mesh.columns())
        check_reached(step, is_reached=bool(report.present.any()))
        bad = report.bad_replicas()
        for stage in self._stages.values():
            stage.finish_step(is_kept=not bad)
        slowest_s = max(rank.span_ns for rank in told) / 1e9
        self.times.busy_s += sum(rank.busy_ns for rank in told) / len(told) / 1e9
        self.times.span_s += slowest_s
        self.times.bubble_s += slowest_s * bubble(self._mesh.width, self._mesh.chunks, len(mine))
        whole = [told[self._mesh.rank_of(process, 0)] for process in range(self._mesh.width)]
        losses = tuple(report.losses[: shares.leaves].tolist())
        return Gradients(
            losses=losses,
            loss=shares.mean(losses),
            checksum=add_checksums(rank.gradient for rank in whole),
            weights=add_checksums(rank.weights for rank in whole),
            bad_replicas=bad,
            is_stop_asked=any(rank.is_stop_asked for rank in told),
        )

    def _look_at_weights(self) -> list[int]:
        """Return a list that has the checksum of this rank's weights, by the time that a step's read is over."""
        held = [*self._weights().values()]
        if self._reads is None:
            return [checksum(held)]
        found: list[int] = []
        self._reads.forget()
        self._reads.ask(self._checksum.parts(held), lambda *parts: found.append(add_checksums(map(int, parts))))
        return found

    def _start_step(self, leaves: int) -> StepReport:
        """Prepare all stages of this rank; each notes its parameters and buffers at its place in the report."""
        parameters = np.cumsum([0, *(len(part.trainable()) for part in self._parts)]).tolist()
        buffers = np.cumsum([0, *(part.num_buffers for part in self._parts)]).tolist()
        counted = np.cumsum([0, *(part.num_counted for part in self._parts)]).tolist()
        report = StepReport(self.replicas, parameters[-1], buffers[-1], counted[-1])
        for index, stage in self._stages.items():
            present = report.present[parameters[index] : parameters[index + 1]]
            changed = report.changed[buffers[index] : buffers[index + 1]]
            numbers = report.counted[counted[index] : counted[index + 1]]
            stage.start_step(leaves, report.bad, present, changed, numbers, self._reads)
        return report

    def clip_norm(self, limit: float) -> None:
        """See `Strategy.clip_norm`: the norm of all parameters' norms, in the model's order, as torch takes it."""
        places = {name: place for place, name in enumerate(name for part in self._parts for name in part.trainable())}
        norms = torch.full((len(places),), -1.0, dtype=torch.float64)
        own = {
            name: parameter.grad
            for stage in self._stages.values()
            for name, parameter in stage.sum.trainable.items()
            if parameter.grad is not None
        }
        if own:
            norms[[places[name] for name in own]] = torch.stack([*map(Tensor.double, norms_of([*own.values()]))]).cpu()
        everyone = torch.empty(self.transport.world_size * len(norms), dtype=torch.float64)
        self.transport.all_gather(norms, everyone)
        known = everyone.view(self.transport.world_size, -1).amax(dim=0)  # each from a rank that has it
        present = [
            known[places[name]].to(parameter.dtype)
            for name, parameter in self.model.named_parameters()
            if name in places and known[places[name]] != -1.0
        ]
        if own:
            norm = torch.linalg.vector_norm(carried(torch.stack(present), self.context.device))
            scale_gradients([*own.values()], norm, limit)

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """See `Strategy.reading`: a call of the model goes through the stages of all ranks, which all must call it."""
        return calling(self.front, self._reader.call)

    def gather(self) -> Whole:
        own = self._own_names()
        return gather(self.model, self.optimizer, lambda name: name in own, self.transport)

    def unpack(self, state: State, scheduler: Any, objects: Mapping[str, checkpoint_format.Stateful]) -> None:
        """See `Strategy.unpack`: the whole state for a moment, then this rank's stages."""
        self.whole = None
        for parameter in self._foreign:
            parameter.data = torch.empty_like(parameter, memory_format=torch.contiguous_format)
        super().unpack(state, scheduler, objects)
        release(self._foreign, self.optimizer)

    def report(self) -> dict[str, Any]:
        """See `Strategy.report`: layers and bytes of the stages, and how idle the processes were."""
        told = {
            "stages": [list(part.layers) for part in self._parts],
            "stage_bytes": [sum(p.nbytes for p in part.parameters.values()) for part in self._parts],
        }
        if self.times.span_s:
            told["idle_share"] = round(1 - self.times.busy_s / self.times.span_s, 4)
            told["idle_share_by_formula"] = round(self.times.bubble_s / self.times.span_s, 4)
        return told

    def _weights(self) -> dict[str, Tensor]:
        return {name: tensor for stage in self._stages.values() for name, tensor in stage.weights().items()}

    def _own_names(self) -> set[str]:
        """Return the names of the parameters and buffers that this rank answers for."""
        foreign = {id(parameter) for parameter in self._foreign}
        names = {name for name, parameter in self.model.named_parameters() if id(parameter) not in foreign}
        others = [part for stage, part in enumerate(self._parts) if stage not in self._stages]
        elsewhere = {id(buffer) for part in others for layer in part.layers.values() for buffer in layer.buffers()}
        return names | {name for name, buffer in self.model.named_buffers() if id(buffer) not in elsewhere}

    def _called_outside(self, *_: Any, **__: Any) -> Any:
        raise StepError(
            "a pipeline's model is on several processes: it is called in run.step() and run.evaluate() only."
        )
