"""The asynchronous parameter server: nobody waits for the slowest worker, as long as it is not too far behind.

Rank 0 serves. Every step a worker pushes the gradient of its own micro-batches, and gets weights that hold what has
been pushed so far. The server applies each push at once with its own optimizer. Stale synchronous parallel (Ho et al.,
"More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013): a worker that has done c steps
gets no answer before every live worker has done c - `max_staleness`. With a bound of 0 the pushes of a step are added
up along the canonical tree and applied once: the synchronous server.

The server's own steps follow the slowest worker, so at every checkpoint and evaluation all have done the same steps.

A rank that is asked to stop says so with its next push. The server then chooses the first step that no worker has
passed without hearing of it, and every answer from then on names that step: all ranks stop after it.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.collectives.places import GuardedTransport
from unisono.collectives.reductions import combine_values
from unisono.determinism.device_reads import brought
from unisono.determinism.switches import checksum
from unisono.errors import PeerLost, RankDivergence, StepError
from unisono.strategies.base import Gradients, Micro, StrategyContext, check_reached
from unisono.strategies.objective import Objective
from unisono.strategies.parts.backward import run_backward
from unisono.strategies.parts.tensor_bytes import from_bytes, to_bytes
from unisono.strategies.replicated import Replicated
from unisono.strategies.servers.channels import Message, ServerLines, StarTransport, WorkerLine, decode, encode
from unisono.strategies.servers.options import AsyncPSOptions

PUSH, PULL, GO, STOP = range(4)
_IS_FINITE, _IS_STOP_ASKED, _IS_REACHED = 1, 2, 4  # bits of what a push says of itself


@dataclass(slots=True)
class _Pushed:
    """What workers have pushed for one step."""

    losses: dict[int, float] = field(default_factory=dict)
    grads: dict[int, list[Tensor | None]] = field(default_factory=dict)
    bad: bool = False


@final
class AsyncParameterServer(Replicated):
    """See the module."""

    keeps_equal = False

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: AsyncPSOptions
    ) -> None:
        super().__init__(model, optimizer, context, options)
        self._bound = options.max_staleness
        self._server = ServerLines(self.transport, options.timeout_s) if self.transport.rank == 0 else None
        self._line = WorkerLine(self.transport, options.timeout_s) if self.transport.rank else None
        self._rank = self.transport.rank  # of the run; the transport's changes when a rank dies
        self._live = list(range(self.transport.world_size))
        self._done = dict.fromkeys(self._live[1:], 0)  # steps by worker
        self._waiting: dict[int, int] = {}  # worker -> the step whose answer it waits for
        self._pushed: dict[int, _Pushed] = {}
        self._asked: dict[int, Tensor] = {}  # buffers of workers that wait to settle
        self._staleness: Counter[int] = Counter()
        self._version = 0
        self._sent: Tensor | None = None  # the weights' bytes, as they are since the last update of a step
        self._last_step = 0  # after which all ranks stop; 0 while nobody has asked

    def compute_gradients(
        self, step: int, micros: Iterable[Micro], num_samples: int, objective: Objective
    ) -> Gradients:
        """See `Strategy.compute_gradients`; on a worker the loss is that of its own samples."""
        if self._server is not None:
            for _ in micros:  # a server computes nothing
                raise StepError("the parameter server was given samples.")
            return self._serve(step)
        own = sum(self.shares(num_samples).sizes[replica] for replica in self.placement[self._rank])
        for parameter in self._parameters.values():
            parameter.grad = None
        shares, losses = list[float](), list[Tensor]()
        for micro in micros:
            loss, _ = run_backward(
                objective, micro, num_samples, seed=self.context.seed, step=step, replicas=self.replicas
            )
            shares.append(micro.num_samples / max(1, own))
            losses.append(loss)
        present = [parameter.grad is not None for parameter in self.trainable()]
        # All that a GPU has to tell comes in one copy.
        told = brought([*losses, *(part.grad for part in self.trainable() if part.grad is not None)])
        loss_value = math.fsum(share * loss.item() for share, loss in zip(shares, told, strict=False))
        grads = told[len(losses) :]
        is_finite = math.isfinite(loss_value) and self.are_finite(grads)
        is_reached = not losses or bool(grads)  # a rank may have no sample
        flags = _IS_FINITE * is_finite | _IS_STOP_ASKED * self.is_stop_asked() | _IS_REACHED * is_reached
        self._push(step, present, grads, loss_value * own / num_samples, flags)
        for parameter in self._parameters.values():
            parameter.grad = None
        is_last = step == self._last_step
        return Gradients(loss=loss_value, checksum=0, weights=0, bad_replicas=(), is_stop_asked=is_last)

    def apply(self) -> bool:
        """See `Strategy.apply`; the server has applied the pushes already."""
        if self._server is None:
            self.optimizer.step()  # without gradients: the scheduler wants to see one
        return True

    def align(self) -> None:
        """See `Replicated.align`: all live ranks take over the server's weights and the first worker's buffers."""
        weights = list(self._parameters.values())
        buffers = [buffer for _, buffer in self.model.named_buffers()]
        if self._line is not None:
            answer = decode(self._line.ask(encode(PULL, body=to_bytes(buffers)))).body
            live = [int(rank) for rank in answer[8 : 8 + 8 * int(answer[:8].view(torch.int64))].view(torch.int64)]
            from_bytes(answer[8 + 8 * len(live) :], [*weights, *buffers])
            self._survive(live)
            return
        assert self._server is not None
        asked, self._asked = self._asked, {}
        while not set(self._server.lines) <= set(asked):
            for rank, question in self._server.take():
                asked[rank] = decode(question).body
        live = [0, *sorted(self._server.lines)]
        from_bytes(asked[live[1]], buffers)
        head = torch.tensor([len(live), *live], dtype=torch.int64).view(torch.uint8)
        message = encode(GO, body=torch.cat([head, to_bytes([*weights, *buffers])]))
        for rank in live[1:]:
            self._server.answer(rank, message)
        self._survive(live)

    def report(self) -> dict[str, Any]:
        """See `Strategy.report`: how many answers held weights so many steps behind, and who has died."""
        if self._server is None:
            return {}
        histogram = {str(key): self._staleness[key] for key in sorted(self._staleness)}
        return {"staleness": histogram, "updates": self._version, "dead_workers": sorted(self._server.dropped)}

    def close(self) -> None:
        for end in (self._server, self._line):
            if end is not None:
                end.close()

    def _survive(self, live: list[int]) -> None:
        """Let the ranks that are alive go on as a smaller world: saving and evaluating too."""
        lines = self._server or self._line
        if len(live) < len(self._live) and isinstance(self.transport, GuardedTransport) and lines is not None:
            self.transport.replace(StarTransport(lines, live, self._rank))
        self._live = live

    def _push(self, step: int, present: list[bool], grads: list[Tensor], loss: float, flags: int) -> None:
        """Tell the server what this worker has computed, and take over its answer; the gradients are on the CPU."""
        assert self._line is not None
        body = torch.cat([torch.tensor(present, dtype=torch.uint8), to_bytes(grads)])
        before = self._line.bytes_sent
        answer = decode(self._line.ask(encode(PUSH, step, flags, loss, body)))
        self._last_step = answer.step
        self.transport.bytes_sent += self._line.bytes_sent - before
        if answer.kind == STOP:
            check_reached(step, is_reached=bool(answer.flags & _IS_REACHED))
            raise PeerLost(
                f"[rank {self._rank}] the parameter server has stopped the run in step {step}: a loss or "
                "gradient is NaN or infinite; its own message names the samples."
            )
        from_bytes(answer.body, list(self._parameters.values()))

    def _serve(self, step: int) -> Gradients:
        """Take pushes until every live worker has done `step`."""
        assert self._server is not None
        self._done = {rank: max(clock, step - 1) for rank, clock in self._done.items()}  # a resumed run starts later
        is_stop_asked, self._sent = self.is_stop_asked(), None
        while self._slowest() < step:
            before = self._server.bytes_sent
            for rank, question in self._server.take():
                push = decode(question)
                if push.kind == PULL:  # it has done this server step already
                    self._asked[rank] = push.body
                    continue
                expected = self._done[rank] + 1
                if push.kind != PUSH or push.step != expected:
                    raise RankDivergence(f"rank {rank} is at step {push.step}, expected step {expected} of it.")
                if not push.flags & _IS_REACHED:
                    self._answer_stop({*self._waiting, rank}, 0)
                    check_reached(push.step, is_reached=False)
                self._take_push(rank, push)
                is_stop_asked = is_stop_asked or bool(push.flags & _IS_STOP_ASKED)
            for rank in self._server.dropped:
                self._done.pop(rank, None)
                self._waiting.pop(rank, None)
            self._apply_whole_steps()
            if any(pushed.bad for pushed in self._pushed.values()):
                bad = [rank for pushed in self._pushed.values() if pushed.bad for rank in pushed.losses]
                self._answer_stop(set(self._waiting), _IS_REACHED)
                replicas = tuple(sorted({replica for rank in bad for replica in self.placement[rank]}))
                return Gradients(loss=math.nan, checksum=0, weights=0, bad_replicas=replicas)
            if self._done and not self._last_step and (is_stop_asked or self.is_stop_asked()):
                self._last_step = max(clock + (rank not in self._waiting) for rank, clock in self._done.items())
            self._answer_those_near_enough()
            self.transport.bytes_sent += self._server.bytes_sent - before
        pushed = self._pushed.pop(step)
        return Gradients(
            loss=math.fsum(pushed.losses.values()), checksum=0,
            weights=self._weights_checksum(), bad_replicas=(), is_stop_asked=step == self._last_step,
        )  # fmt: skip

    def _slowest(self) -> int:
        assert self._server is not None
        if not self._done:
            self._server.take()  # raises: nobody is left
        return min(self._done.values())

    def _take_push(self, rank: int, push: Message) -> None:
        trainable = self.trainable()
        present = push.body[: len(trainable)].tolist()
        grads = [torch.empty_like(p) if has else None for p, has in zip(trainable, present, strict=True)]
        from_bytes(push.body[len(trainable) :], [grad for grad in grads if grad is not None])
        pushed = self._pushed.setdefault(push.step, _Pushed())
        pushed.losses[rank], pushed.bad = push.loss, pushed.bad or not push.flags & _IS_FINITE
        self._done[rank] = self._waiting[rank] = push.step
        if self._bound == 0:
            pushed.grads[rank] = grads
        elif not pushed.bad:
            self._update_with(grads)

    def _apply_whole_steps(self) -> None:
        """With a bound of 0: add up a step's pushes once all live workers have sent theirs."""
        for clock, pushed in sorted(self._pushed.items()):
            if pushed.grads and not pushed.bad and self._done and self._slowest() >= clock:
                total: list[Tensor | None] = []
                for column in zip(*(pushed.grads[rank] for rank in sorted(pushed.grads)), strict=True):
                    some = [grad for grad in column if grad is not None]
                    values = [torch.zeros_like(some[0]) if grad is None else grad for grad in column] if some else []
                    out = torch.empty_like(some[0]) if some else None
                    if out is not None:
                        combine_values(values, "SUM", out)
                    total.append(out)
                self._update_with(total)
                pushed.grads = {}

    def _update_with(self, grads: list[Tensor | None]) -> None:
        for parameter, grad in zip(self.trainable(), grads, strict=True):
            parameter.grad = grad
        self.clip_gradients()
        self.optimizer.step()
        self._version, self._sent = self._version + 1, None

    def _answer_those_near_enough(self) -> None:
        assert self._server is not None
        if not self._done:
            return
        slowest = self._slowest()
        near = [rank for rank, clock in sorted(self._waiting.items()) if clock - slowest <= self._bound]
        if not near:
            return
        answer = encode(GO, self._last_step, body=self._weights_bytes())
        for rank in near:
            self._staleness[self._waiting.pop(rank) - slowest] += 1
            self._server.answer(rank, answer)

    def _weights_bytes(self) -> Tensor:
        """Return the bytes of the weights; within a step a GPU is waited for once for each update."""
        if self._sent is None:
            self._sent = to_bytes([*self._parameters.values()])
        return self._sent

    def _weights_checksum(self) -> int:
        lengths = [parameter.nbytes for parameter in self._parameters.values()]
        return checksum(self._weights_bytes().split(lengths))

    def _answer_stop(self, ranks: set[int], told: int) -> None:
        assert self._server is not None
        for rank in sorted(ranks):
            self._server.answer(rank, encode(STOP, flags=told))
