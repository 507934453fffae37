"""Fully sharded data parallel (torch's FSDP2) with an exact reduction: the bits of `exact`, at a share of its memory.

Every rank keeps a slice of each parameter and of its optimizer state. torch gathers a module's parameters before they
are used and throws them away after; gradients are reduce-scattered. Here the reduce-scatter is ours: each rank receives
its slice of every replica's gradient, one replica of every rank at a time, and adds them along the canonical tree with
a binary counter. So bits depend on the score alone, as in `exact`, and a checkpoint loads on any number of ranks.

All ranks must run equally many passes: a rank with fewer micro-batches than others repeats one, and nobody counts it.
"""

import contextlib
import functools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from unisono.checkpoint import format as checkpoint_format
from unisono.checkpoint.format import State
from unisono.collectives.tree import combine, push
from unisono.determinism.device_reads import largest_of, reads_of
from unisono.determinism.switches import add_checksums, checksum, checksum_part
from unisono.errors import ConfigError, StepError
from unisono.strategies.base import Gradients, Micro, Shares, StrategyContext, check_reached, norms_of, scale_gradients
from unisono.strategies.ddp import join_alone
from unisono.strategies.objective import Objective
from unisono.strategies.options import FSDPOptions
from unisono.strategies.parts.backward import run_backward
from unisono.strategies.parts.flat import padding_checksum, slice_of_words
from unisono.strategies.parts.leaf_sum import LeafSum
from unisono.strategies.parts.replica_buffers import ReplicaBuffers
from unisono.strategies.parts.report import RankReport, StepReport
from unisono.strategies.parts.weighing import scale
from unisono.strategies.parts.whole import SpreadStrategy, Whole
from unisono.strategies.sharded.reduce import Rounds, Stack, TreeReduceScatter, add
from unisono.strategies.sharded.slices import local_of, sliced_like, whole_of


@final
class FSDP(SpreadStrategy):
    """See the module."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: FSDPOptions) -> None:
        super().__init__(model, optimizer, context, options)
        self._group = join_alone(self.transport)
        self._rounds = Rounds(self.placement, 1)
        self._spare: Micro | None = None
        if self.transport.world_size > 1 and not dist.is_initialized():
            raise ConfigError("strategy fsdp needs processes. Hint: unisono run, or unisono.launch.")
        before = dict(model.named_parameters())
        try:
            self._shard(model, options)
        except BaseException:
            self.close()
            raise
        after = dict(model.named_parameters())
        sharded: dict[Tensor, nn.Parameter] = {parameter: after[name] for name, parameter in before.items()}
        for group in optimizer.param_groups:
            group["params"] = [sharded[parameter] for parameter in group["params"]]
        for parameter in [*optimizer.state]:  # some optimizers make it when they are built
            own, entry = sharded[parameter], optimizer.state.pop(parameter)
            optimizer.state[own] = {name: sliced_like(value, own, self.transport) for name, value in entry.items()}
        self._buffers = ReplicaBuffers(model.named_modules())
        self._sum = LeafSum({}, self._buffers, self.transport)  # gradients are added as torch reduces them
        self._parameters = list(after.values())
        #: What a step on a GPU has to tell, which the CPU waits for once; None: it is told at once.
        self._reads = reads_of(self._parameters)

    def compute_gradients(
        self, step: int, micros: Iterable[Micro], num_samples: int, objective: Objective
    ) -> Gradients:
        """See `Strategy.compute_gradients`; the gradients are slices."""
        self.whole = None
        shares = self.shares(num_samples)
        self._rounds = Rounds(self.placement, shares.leaves)
        report = StepReport(self.replicas, 0, self._buffers.num_buffers, self._buffers.num_counted)
        kept = self._buffers.saved_floats().values() if self.transport.rank == 0 else ()
        if self._reads is not None:
            self._reads.forget()
        weights = self._look([*self._words(self._parameters), *kept])
        is_reached = self._compute(step, micros, shares, objective, report)
        grads = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if objective.weight is not None:
            self._read()
            report.merge(self.transport, RankReport(step, weights[0]))
            scale(map(local_of, grads), report.weigh(objective, shares).factor)
        is_finite = self._look_whether_finite([*map(local_of, grads)])
        self._sum.send(self.placement)
        buffers, gradient = self._look(self._sum.finish_unread().words), self._look(self._words(grads))
        self._buffers.tell(report.counted, self._reads)
        self._read()
        own = RankReport(step, weights[0], gradient[0], all(is_finite), is_reached, self.is_stop_asked())
        told = report.merge(self.transport, own)
        self._buffers.start_replica()
        weighed = report.weigh(objective, shares)
        check_reached(step, is_reached=any(rank.is_reached for rank in told) or bool(weighed.bad))
        bad = weighed.bad or report.bad_replicas()
        if not bad and not all(rank.is_finite for rank in told):
            bad = tuple(range(shares.leaves))
        self._sum.finish_step(report.present, report.changed, report.counted, is_kept=not bad)
        # As `exact` counts: with what lies unused in its flat buffers.
        padding = padding_checksum(parameter for parameter in self._parameters if parameter.requires_grad)
        return Gradients(
            loss=weighed.loss,
            samples_weight=weighed.total,
            checksum=add_checksums([*buffers, padding, *(rank.gradient for rank in told)]),
            weights=add_checksums(rank.weights for rank in told),
            bad_replicas=bad,
            is_stop_asked=any(rank.is_stop_asked for rank in told),
        )

    def clip_norm(self, limit: float) -> None:
        """See `Strategy.clip_norm`; norms are taken of whole tensors, one at a time, as `exact` does."""
        grads = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norms = [norms_of([whole_of(grad, self.transport)])[0] for grad in grads]
        scale_gradients([local_of(grad) for grad in grads], torch.linalg.vector_norm(torch.stack(norms)), limit)

    def own_gradients(self) -> list[Tensor]:
        """See `Strategy.own_gradients`: slices."""
        return [local_of(grad) for grad in super().own_gradients()]

    def gather(self) -> Whole:
        packed = checkpoint_format.pack(self.model, self.optimizer, None, {})
        tensors = {
            # In name order: after a resume each rank's dictionaries have an order of their own.
            stem: {
                name: whole_of(tensor, self.transport).detach().cpu().clone()
                for name, tensor in sorted(packed.tensors[stem].items())
            }
            for stem in ("model", "optimizer")
        }
        return Whole(tensors, {})

    def unpack(self, state: State, scheduler: Any, objects: Mapping[str, checkpoint_format.Stateful]) -> None:
        """See `Strategy.unpack`: each rank takes its slices."""
        shapes = dict(self.model.named_parameters())
        sliced = {
            stem: {
                name: sliced_like(
                    tensor, shapes.get(name if stem == "model" else name.rpartition("/")[0]), self.transport
                )
                for name, tensor in part.items()
            }
            for stem, part in state.tensors.items()
        }
        super().unpack(replace(state, tensors=sliced), scheduler, objects)

    def report(self) -> dict[str, Any]:
        """See `Strategy.report`: the bytes of weights and optimizer state that this rank keeps."""
        return {"state_bytes_per_rank": self.state_bytes()}

    def state_bytes(self) -> int:
        """Return the bytes of parameters and optimizer state on this rank."""
        state = [value for entry in self.optimizer.state.values() for value in entry.values()]
        return sum(local_of(tensor).nbytes for tensor in [*self._parameters, *state] if isinstance(tensor, Tensor))

    def close(self) -> None:
        self._group.close()

    def _compute(
        self, step: int, micros: Iterable[Micro], shares: Shares, objective: Objective, report: StepReport
    ) -> bool:
        """Do all rounds of a step, and return whether a parameter has got a gradient on this rank."""
        for parameter in self._parameters:
            parameter.grad = None
        self._buffers.start_step()
        self._sum.start_step(shares.leaves)
        is_reached = False
        rounds = self._rounds
        alone: Stack = []
        mine = iter(micros)
        for number in range(rounds.count):
            rounds.now = number
            replica = rounds.replica_of(self.transport.rank)
            micro = next(mine, None) if replica is not None else self._spare
            if micro is None or (replica is not None and micro.replica != replica):
                raise StepError(
                    f"step {step}: this rank has no sample to take part with. Hint: batch_size of at least the number "
                    f"of processes ({self.transport.world_size})."
                )
            self._spare = micro
            self._buffers.start_replica()
            loss, weight = run_backward(
                objective, micro, shares.num_samples, seed=self.context.seed, step=step, replicas=self.replicas,
                share=operator.truediv if replica is not None else lambda *_: 0.0, silenced=self._silenced,
            )  # fmt: skip
            is_reached |= any(parameter.grad is not None for parameter in self._parameters)
            if replica is None:
                continue
            floats = self._buffers.collect(shares.weights[replica], report.changed, self._reads)
            self._sum.add(replica, floats, report.present, lambda *_: True)  # it has buffers only
            if self._reads is None:
                report.note(replica, loss.item(), weight)
            else:
                self._reads.ask([loss], functools.partial(report.note_read, replica, weight))
            if self.transport.world_size == 1:
                push(alone, replica, self._take_slices(), rounds.leaves, add)
        if self.transport.world_size == 1:
            self._put(combine(dict(alone), rounds.leaves, add))
        # torch's own part: each module's parameters are gathered once before forward and once before backward.
        size = sum(parameter.numel() * parameter.element_size() for parameter in self._parameters)
        world_size = self.transport.world_size
        self.transport.bytes_sent += 2 * rounds.count * (world_size - 1) * size // world_size
        return is_reached

    @contextlib.contextmanager
    def _silenced(self) -> Iterator[None]:
        """Let a replica's gradients count nothing: all ranks reduce together."""
        self._rounds.is_silent = True
        yield
        self._rounds.is_silent = False
        for parameter in self._parameters if self.transport.world_size == 1 else ():
            parameter.grad = None

    def _take_slices(self) -> list[Tensor]:
        """Take all gradients away from their parameters; -0.0, the neutral element, where there is none."""
        taken = [
            torch.full_like(local_of(parameter), -0.0) if parameter.grad is None else local_of(parameter.grad)
            for parameter in self._parameters
        ]
        for parameter in self._parameters:
            parameter.grad = None
        return taken

    def _shard(self, model: nn.Module, options: FSDPOptions) -> None:
        kind = self.context.device.type
        if options.offload and kind == "cpu":
            raise ConfigError("offload moves weights to the CPU, where they are already. Hint: leave --offload out.")
        offload = CPUOffloadPolicy() if options.offload else OffloadPolicy()
        dtype = {"fp32": None, "bf16": torch.bfloat16}[options.param_dtype]
        # Where nothing is cast, gradients are added in their own dtype, as `exact` adds them.
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=None if dtype is None else torch.float32)
        mesh = init_device_mesh(kind, (self.transport.world_size,))
        names, inner = {id(module): name for name, module in model.named_modules()}, set[nn.Parameter]()
        for unit in (*_units(model, options.wrap), model):
            own = set(unit.parameters()) - inner
            inner |= own
            module: Any = fully_shard(unit, mesh=mesh, mp_policy=policy, offload_policy=offload)
            if dtype is None and any(parameter.dtype in (torch.float64, torch.float16) for parameter in own):
                module.set_gradient_divide_factor(1.0)  # torch would divide by the ranks on the way
            if self.transport.world_size > 1:
                name = names[id(unit)] or type(unit).__name__
                module.set_custom_reduce_scatter(TreeReduceScatter(self.transport, lambda: self._rounds, name))
            if hasattr(module, "set_reduce_scatter_unused_params"):
                module.set_reduce_scatter_unused_params(True)

    def _words(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return what has as its checksum what this rank's slices add to the checksum of the whole tensors."""
        found = []
        for tensor in tensors:
            rows = -(-tensor.shape[0] // self.transport.world_size) if tensor.dim() else 1
            start = self.transport.rank * rows * (tensor.numel() // max(1, tensor.shape[0])) if tensor.dim() else 0
            found.append(slice_of_words(local_of(tensor), start))
        return found

    def _look(self, tensors: Sequence[Tensor]) -> list[int]:
        """Return a list that has the checksum of some tensors, on a GPU after `_read`."""
        if self._reads is None:
            return [checksum(tensors)]
        found: list[int] = []
        parts = [checksum_part(tensor) for tensor in tensors]
        self._reads.ask(parts, lambda *read: found.append(add_checksums(map(int, read))))
        return found

    def _look_whether_finite(self, grads: Sequence[Tensor]) -> list[bool]:
        """Return a list that says whether gradients are finite, on a GPU after `_read`."""
        if self._reads is None:
            return [bool(grad.isfinite().all()) for grad in grads]
        found: list[bool] = []
        self._reads.ask(largest_of(grads), lambda *read: found.extend(math.isfinite(each) for each in read))
        return found

    def _read(self) -> None:
        if self._reads is not None:
            self._reads.read()

    def _put(self, total: list[Tensor]) -> None:
        for parameter, value in zip(self._parameters, total, strict=True):
            if parameter.requires_grad and isinstance(parameter, DTensor):
                parameter.grad = DTensor.from_local(
                    value, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
                )


def _units(model: nn.Module, wrap: tuple[str, ...] | None) -> Iterator[nn.Module]:
    """Yield the modules that are gathered and freed by themselves: children first."""
    if wrap is None:
        yield from (child for child in model.children() if any(True for _ in child.parameters()))
        return
    found = [module for module in model.modules() if type(module).__name__ in wrap and module is not model]
    missing = set(wrap) - {type(module).__name__ for module in found}
    if missing:
        known = sorted({type(module).__name__ for module in model.modules()})
        raise ConfigError(f"the model has no module of class {', '.join(sorted(missing))}; it has {', '.join(known)}.")
    yield from reversed(found)
