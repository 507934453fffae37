"""torch's DistributedDataParallel inside a run: its own wrapper, knobs and communication hooks."""

import contextlib
import inspect
import re
from collections.abc import Iterator
from typing import Any, final

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket, HashStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from unisono.collectives.process_groups.default_group import GroupOwner
from unisono.collectives.transport import Transport
from unisono.determinism.devices import is_gpu
from unisono.errors import StepError
from unisono.strategies.base import StrategyContext
from unisono.strategies.options import DDPOptions
from unisono.strategies.parts.front import calling
from unisono.strategies.replicated import Replicated


def join_alone(transport: Transport) -> GroupOwner:
    """Make a process group of one where this process is alone and has none; return what ends it."""
    is_needed = not dist.is_initialized() and transport.world_size == 1
    if is_needed:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    return GroupOwner(owns_group=is_needed)


def _in_bf16(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce in bfloat16; torch's own hook of that name is refused on CPUs."""
    small = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
    future: torch.futures.Future[list[torch.Tensor]] = dist.all_reduce(small, async_op=True).get_future()

    def decompress(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        buffer: torch.Tensor = bucket.buffer()
        return buffer.copy_(done.value()[0])

    return future.then(decompress)


@final
class DDP(Replicated):
    """See the module.

    Gradients are weighted so that DDP's mean over ranks is the mean over samples. A step in which a rank has no sample
    (a short last batch) is reduced after backward instead.
    """

    options: DDPOptions

    def __init__(self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: DDPOptions) -> None:
        super().__init__(model, optimizer, context, options)
        self._group = join_alone(self.transport)
        self._wrapped: list[nn.Parameter] = []
        self._is_called = False
        self._ddp: DistributedDataParallel
        try:
            self._wrap()
        except BaseException:
            self.close()
            raise

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._is_called = True
        return self._ddp(*args, **kwargs)

    def begin(self, step: int, samples: list[int]) -> None:
        """See `Replicated.begin`; torch syncs the buffers itself."""
        trainable = self.trainable()
        if len(trainable) != len(self._wrapped) or any(
            a is not b for a, b in zip(trainable, self._wrapped, strict=True)
        ):
            self._wrap()  # parameters have been frozen or unfrozen
        self._step, self._is_short = step, min(samples) == 0

    @contextlib.contextmanager
    def passing(self, *, is_last: bool) -> Iterator[None]:
        """See `Replicated.passing`; only the last micro-batch's backward pass reduces."""
        if self._is_short:
            with calling(self.front, self.model):
                yield
            return
        self._is_called = False
        with contextlib.nullcontext() if is_last else self._ddp.no_sync():
            yield
        if not self._is_called:
            raise StepError(
                f"step {self._step}: the loss was computed without a call of the model that run.prepare() returned: "
                "DDP could not reduce its gradient. Hint: model, optimizer = run.prepare(model, optimizer), and in "
                "the loss function model(...), not one of its parts, a copy or another instance."
            )
        if is_last:
            self._check_reduced()

    def _check_reduced(self) -> None:
        """Refuse gradients that DDP has not reduced, before anybody uses them."""
        try:
            self._ddp._check_reducer_finalized()
        except RuntimeError as error:
            named = {name: parameter for name, parameter in self._parameters.items() if parameter.requires_grad}
            missing = [name for name, parameter in named.items() if parameter.grad is None]
            if not missing and (found := re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))):
                names = list(named)  # an earlier micro-batch had used them
                missing = [names[int(index)] for index in found[1].split()]
            shown = ", ".join(map(repr, missing[:8])) + (", ..." if missing[8:] else "")
            raise StepError(
                f"step {self._step}: some parameters got no gradient, and DDP waited for them: {shown} "
                f"({len(missing)} of {len(named)}). Hint: --find-unused-parameters "
                "(unisono.strategy('ddp', find_unused_parameters=True)); requires_grad_(False) for what is never used; "
                "or the strategy exact, which needs neither."
            ) from error

    def weight(self, amount: float, total: int) -> float:
        """See `Replicated.weight`; DDP divides by the world size, so equal shares weigh exactly 1."""
        scale = 1 if self._is_short else self.transport.world_size
        return amount * scale / total

    @contextlib.contextmanager
    def silenced(self) -> Iterator[None]:
        """Let DDP see gradients of 0: it waits for every parameter's."""
        hooks = [parameter.register_hook(torch.zeros_like) for parameter in self.trainable()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def reduce(self, step: int) -> None:
        """See `Replicated.reduce`; only where backward could not do it."""
        if self._is_short and self.transport.world_size > 1:
            for grad in self.fill_absent():
                dist.all_reduce(grad)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        found = super().compute_gradients(*args, **kwargs)
        if not self._is_short:
            size = sum(parameter.nbytes for parameter in self.trainable())
            self.transport.bytes_sent += 2 * (self.transport.world_size - 1) * size // self.transport.world_size
        return found

    def close(self) -> None:
        self._group.close()

    def _wrap(self) -> None:
        options, device = self.options, self.context.device
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        # torch 2.13 renamed broadcast_buffers; the old name warns there, the new one is missing before.
        sync = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        self._wrapped = self.trainable()
        self._ddp = DistributedDataParallel(
            self.model,
            device_ids=[device.index] if is_gpu(device) else None,
            find_unused_parameters=options.find_unused_parameters,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            static_graph=options.static_graph,
            bucket_cap_mb=options.bucket_cap_mb,
            **{sync: options.forward_sync_buffers},  # type: ignore[arg-type]
        )
        if options.comm_hook == "bf16":
            self._ddp.register_comm_hook(None, _in_bf16)
        elif options.comm_hook == "fp16":
            self._ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif options.comm_hook == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=options.powersgd_rank, start_powerSGD_iter=2
            )
            self._ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
