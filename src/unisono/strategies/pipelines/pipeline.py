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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.checkpoint import format as checkpoint_format
from unisono.checkpoint.format import State
from unisono.collectives.placement import cut
from unisono.determinism.switches import add_checksums, checksum
from unisono.errors import StepError
from unisono.strategies.base import (
    Gradients,
    LossFunction,
    Micro,
    Strategy,
    StrategyContext,
    check_reached,
    mean_loss,
    scale_gradients,
)
from unisono.strategies.parts.drift import Head, compare
from unisono.strategies.parts.front import Front
from unisono.strategies.parts.whole import Tensors, gather, merge_notes, with_whole
from unisono.strategies.pipelines.evaluation import Reader
from unisono.strategies.pipelines.executor import Executor, Work
from unisono.strategies.pipelines.options import PipelineOptions
from unisono.strategies.pipelines.parts import Mesh, claim, cut_model, release
from unisono.strategies.pipelines.report import PipelineReport
from unisono.strategies.pipelines.schedule import bubble


@dataclass(slots=True)
class Times:
    """How busy the processes have been, over all steps.

    Attributes:
        busy_s: Seconds of computing, the mean over the processes.
        span_s: Seconds from the first move to the last one of the slowest process.
        bubble_s: Of these, those that must be idle by the formula.
    """

    busy_s: float = 0.0
    span_s: float = 0.0
    bubble_s: float = 0.0


@final
class Pipeline(Strategy):
    """See the module.

    Attributes:
        times: How busy the processes have been.
    """

    is_sharded = True
    evaluates_alike = True

    options: PipelineOptions

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: PipelineOptions
    ) -> None:
        super().__init__(model, optimizer, context, options)
        self._mesh = Mesh(self.transport.rank, *options.mesh(self.transport.world_size))
        self._rows = options.rows(context.replicas, self.transport.world_size)
        self._parts = cut_model(model, options)
        messages = self.transport.messages() if self.transport.world_size > 1 else None
        self._stages = claim(self._parts, self._mesh, messages)
        own = {id(parameter) for stage in self._stages.values() for parameter in stage.parameters.values()}
        self._foreign = [parameter for parameter in model.parameters() if id(parameter) not in own]
        self.front: Front = Front(model, self._called_outside)
        self._executor = Executor(self._stages, self._mesh, options, self.front, context, messages)
        self._reader = Reader(self._stages, self._mesh, options, context.device, messages)
        self._whole: tuple[Tensors, dict[str, Any]] | None = None
        self.times = Times()
        release(self._foreign, optimizer)
        fewest = min(len(row) for row in self._rows)
        if fewest < self._mesh.width and self.transport.rank == 0:
            warnings.warn(
                f"strategy pipeline: micro-batches {fewest} for {self._mesh.width} processes leave "
                f"{bubble(self._mesh.width, self._mesh.chunks(options), fewest):.0%} of the time idle. "
                f"Hint: --micro-batches {4 * self._mesh.width} or more.",
                stacklevel=2,
            )

    def compute_gradients(
        self, step: int, micros: Iterable[Micro], num_samples: int, loss_function: LossFunction
    ) -> Gradients:
        """See `Strategy.compute_gradients`."""
        self._whole = None
        self.transport.step = step
        replicas = self.context.replicas
        sizes = [len(part) for part in cut(num_samples, replicas)]
        leaves = min(num_samples, replicas)
        mine = [replica for replica in self._rows[self._mesh.pipeline] if replica < leaves]
        weights = checksum(self._weights().values())
        work = Work(step, mine, sizes, num_samples, replicas, loss_function, iter(micros))
        for stage in self._stages.values():
            stage.start_step(leaves)
        began = time.perf_counter()
        self._executor.execute(work)
        span_s = time.perf_counter() - began
        gradient = add_checksums(stage.reduce(self._rows) for stage in self._stages.values())
        report = PipelineReport(self._parts, replicas)
        for stage in self._stages.values():
            report.note(stage, work.losses)
        head = [step, weights, gradient, int(work.busy_s * 1e9), int(span_s * 1e9), int(self.is_stop_asked())]
        heads = report.merge(self.transport, self._mesh, self._rows, head)
        self._compare([Head(*told[:2]) for told in heads])
        check_reached(step, is_reached=report.is_reached)
        bad = tuple(replica for replica in range(leaves) if not report.finite[replica])
        for stage in self._stages.values():
            report.tell(stage)
            stage.finish_step(is_kept=not bad)
        self._time([told[3:5] for told in heads], len(mine))
        whole = [heads[self._mesh.rank_of(process, 0)] for process in range(self._mesh.width)]
        return Gradients(
            losses=tuple(report.losses[:leaves].tolist()),
            loss=mean_loss(sizes, report.losses, num_samples),
            checksum=add_checksums(told[2] for told in whole),
            weights=add_checksums(told[1] for told in whole),
            bad_replicas=bad,
            is_stop_asked=any(told[5] for told in heads),
        )

    def clip_norm(self, limit: float) -> None:
        """See `Strategy.clip_norm`: the norm of all parameters' norms, in the model's order, as torch takes it."""
        places = {name: place for place, name in enumerate(name for part in self._parts for name in part.trainable())}
        norms = torch.full((len(places),), -1.0, dtype=torch.float64)
        own = {
            name: parameter.grad
            for stage in self._stages.values()
            for name, parameter in stage.trainable.items()
            if parameter.grad is not None
        }
        if own:
            for name, norm in zip(own, torch._foreach_norm(list(own.values())), strict=True):
                norms[places[name]] = norm.double()
        everyone = torch.empty(self.transport.world_size * len(norms), dtype=torch.float64)
        self.transport.all_gather(norms, everyone)
        known = everyone.view(self.transport.world_size, -1).amax(dim=0)  # each from a rank that has it
        present = [
            known[places[name]].to(parameter.dtype)
            for name, parameter in self.model.named_parameters()
            if name in places and known[places[name]] != -1.0
        ]
        if own:
            norm = torch.linalg.vector_norm(torch.stack(present).to(self.context.device))
            scale_gradients([*own.values()], norm, limit)

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """See `Strategy.reading`: a call of the model goes through the stages of all ranks, which all must call it."""
        return self._reading()

    def settle(self) -> None:
        """See `Strategy.settle`; gathers the whole state, which `pack` and `fingerprint` read."""
        packed = checkpoint_format.pack(self.model, self.optimizer, None, {})
        own = self._own_names()
        tensors = {
            "model": {name: tensor for name, tensor in packed.tensors["model"].items() if name in own},
            "optimizer": {n: t for n, t in packed.tensors["optimizer"].items() if n.rpartition("/")[0] in own},
        }
        notes = merge_notes(packed, lambda name: name in own or name.rpartition("/")[0] in own, self.transport)
        self._whole = gather(tensors, self.transport), notes

    def pack(self, scheduler: Any, objects: Mapping[str, checkpoint_format.Stateful]) -> State:
        """See `Strategy.pack`; gathers the whole state where that has not been done since the last step."""
        return with_whole(super().pack(scheduler, objects), *self._gathered())

    def unpack(self, state: State, scheduler: Any, objects: Mapping[str, checkpoint_format.Stateful]) -> None:
        """See `Strategy.unpack`: the whole state for a moment, then this rank's stages."""
        self._whole = None
        for parameter in self._foreign:
            parameter.data = torch.empty_like(parameter, memory_format=torch.contiguous_format)
        super().unpack(state, scheduler, objects)
        release(self._foreign, self.optimizer)

    def fingerprint(self) -> str:
        """See `Strategy.fingerprint`."""
        return checkpoint_format.fingerprint_of(self._gathered()[0]["model"])

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

    def _gathered(self) -> tuple[Tensors, dict[str, Any]]:
        if self._whole is None:
            self.settle()
        assert self._whole is not None
        return self._whole

    def _compare(self, heads: list[Head]) -> None:
        groups = [[self._mesh.rank_of(process, p) for p in range(self._mesh.pipelines)]
                  for process in range(self._mesh.width)]  # fmt: skip
        compare(heads, self._weights(), self.transport, groups)

    def _time(self, told: list[tuple[int, ...]], micros: int) -> None:
        span_s = max(span for _, span in told) / 1e9
        self.times.busy_s += sum(busy for busy, _ in told) / len(told) / 1e9
        self.times.span_s += span_s
        self.times.bubble_s += span_s * bubble(self._mesh.width, self._mesh.chunks(self.options), micros)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        self.front.call = self._reader.call
        try:
            yield
        finally:
            self.front.call = self._called_outside

    def _called_outside(self, *_: Any, **__: Any) -> Any:
        raise StepError(
            "a pipeline's model is on several processes: it is called in run.step() and run.evaluate() only."
        )
