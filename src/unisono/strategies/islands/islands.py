"""Local updates on islands of replicas (DiLoCo), with bits that depend on the score alone.

The replicas are cut into islands of equal size, which belong to the score. Each has weights, buffers and optimizer
state of its own and trains on its replicas' micro-batches. After so many updates they meet: what they have moved by is
averaged along the canonical tree over islands, and an outer step (`outer`) moves the common weights, from which all
start anew. A rank computes whole islands, one after the other; between steps the program's model holds the common
weights, the same on all ranks. Between two meetings the ranks exchange nothing but a report of a few bytes.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.checkpoint import format as checkpoint_format
from unisono.checkpoint.format import State
from unisono.determinism.device_reads import DeviceReads, reads_of
from unisono.determinism.switches import Checksum, add_checksums, checksum
from unisono.errors import CheckpointError, ConfigError, StepError
from unisono.strategies.base import Gradients, Micro, Shares, Strategy, StrategyContext, check_reached
from unisono.strategies.islands.cut import island_size
from unisono.strategies.islands.island import Island, empty_state
from unisono.strategies.islands.outer import outer_step
from unisono.strategies.objective import Objective
from unisono.strategies.options import ExactOptions
from unisono.strategies.parts.backward import run_backward
from unisono.strategies.parts.drift import compare
from unisono.strategies.parts.leaf_sum import LeafSum
from unisono.strategies.parts.replica_buffers import ReplicaBuffers
from unisono.strategies.parts.report import RankReport, StepReport
from unisono.strategies.parts.whole import SpreadStrategy, Whole, gather_tensors


@final
class Islands(SpreadStrategy):
    """See the module."""

    is_sharded = False
    evaluates_alike = False
    keeps_equal = True

    def __init__(self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: ExactOptions) -> None:
        super().__init__(model, optimizer, context, options)
        assert options.island_steps is not None
        self._steps, self._lr, self._momentum = options.island_steps, *options.outer
        self._parameters = dict(model.named_parameters())
        _check_apart(self._parameters)
        self._size = island_size(self.replicas, options.islands)
        self._count = self.replicas // self._size
        self._hosted = [range(hosted.start // self._size, hosted.stop // self._size) for hosted in self.placement]
        self._buffers = ReplicaBuffers(model.named_modules())
        self._held, self._checksum = [*self._parameters.values(), *self._buffers.saved_floats().values()], Checksum()
        state, optimizer.state = optimizer.state, empty_state()
        #: What a step on a GPU has to tell, which the CPU waits for once; None: it is told at once.
        self._reads = reads_of(model.parameters())
        self._islands = [
            Island(number, range(number * self._size, (number + 1) * self._size), model, optimizer, state, self._reads)
            for number in self._hosted[self.transport.rank]
        ]
        self._moving: list[str] = []  # parameters that the islands have of their own in this round
        self._moved: dict[str, nn.Parameter] = {}  # stand for them in the sum, as whose gradients their moves are added
        self._sum: LeafSum | None = None  # kept from meeting to meeting: it learns how fast the link is
        self._velocity: dict[str, Tensor] = {}
        self._since, self._rounds = 0, 0  # updates since the islands met; how often they have met
        self._common = 0  # checksum of what the model holds, while the islands are under way

    def compute_gradients(
        self, step: int, micros: Iterable[Micro], num_samples: int, objective: Objective
    ) -> Gradients:
        """See `Strategy.compute_gradients`; each island keeps its gradient to itself."""
        self.whole, self.transport.step = None, step
        shares = self.shares(num_samples)
        self._start_islands(step)
        for island in self._islands:
            island.look_at_weights()
        trainable = sum(parameter.requires_grad for parameter in self._parameters.values())
        report, mine = StepReport(self.replicas, trainable), iter(micros)
        for island in self._islands:
            try:
                self._compute(island, step, mine, shares, objective, report)
            except BaseException:
                island.give_up()
                raise
        if self._reads is not None:
            self._read(self._reads)
        if next(mine, None) is not None:
            raise StepError(f"step {step}: this rank got a micro-batch of another rank's replica.")
        asked, is_training = self.is_stop_asked(), self.model.training
        weights = [island.weights_sum for island in self._islands]
        if self.transport.rank == 0:  # all have it alike: counted once
            weights.append(self._common)
        gradient = add_checksums(island.gradient_sum for island in self._islands)
        own = RankReport(step, add_checksums(weights), gradient, is_stop_asked=asked, is_training=is_training)
        told = report.merge(self.transport, own)
        compare([rank.head._replace(weights=0) for rank in told], self._parameters, self.transport)
        check_reached(step, is_reached=report.is_reached())
        losses = tuple(report.losses[: shares.leaves].tolist())
        return Gradients(
            losses=losses,
            loss=shares.mean(losses),
            checksum=add_checksums(rank.gradient for rank in told),
            weights=add_checksums(rank.weights for rank in told),
            bad_replicas=report.bad_replicas(),
            is_stop_asked=any(rank.is_stop_asked for rank in told),
        )

    def apply(self) -> bool:
        """See `Strategy.apply`: every island its own update; after every `island_steps` of them all meet."""
        for island in self._islands:
            island.update(self.clip_gradients)
        self._since += 1
        if self._since == self._steps:
            self._meet()
            self._since, self._rounds = 0, self._rounds + 1
        return True

    def settle(self) -> None:
        """See `Strategy.settle`; between steps the model holds the common weights anyway."""

    def fingerprint(self) -> str:
        """See `Strategy.fingerprint`: of the common weights."""
        return Strategy.fingerprint(self)

    def left_over(self) -> str:
        """See `Strategy.left_over`: a run that ends between two meetings."""
        if not self._since:
            return ""
        return (
            f"the run ends {self._since} step{'s' if self._since > 1 else ''} after its islands have met"
            f"{' the last time' if self._rounds else ' at the start'}: the model does not hold what these steps have "
            f"learned. Hint: a number of steps that is a multiple of {self._steps} (island_steps, batch_size, epochs, "
            "max_steps), or go on from here."
        )

    def gather(self) -> Whole:
        """See `SpreadStrategy.gather`: the islands' states; their weights only where they are not the common ones."""
        tensors: dict[str, Tensor] = {}
        notes: dict[str, Any] = {}
        for island in self._islands:
            found, notes[str(island.number)] = island.pack(with_weights=self._since > 0)
            tensors |= found
        merged: dict[str, Any] = {}
        for told in self.transport.all_gather_json(notes):
            merged |= told
        whole = gather_tensors({"islands": tensors}, self.transport)
        whole["islands"] |= {f"velocity/{name}": self._velocity[name].clone() for name in sorted(self._velocity)}
        return Whole(whole, merged)

    def pack(self, scheduler: Any, objects: Mapping[str, checkpoint_format.Stateful]) -> State:
        whole, state = self._known(), Strategy.pack(self, scheduler, objects)
        return replace(
            state, tensors={**state.tensors, **whole.tensors}, values={**state.values, "islands": {**whole.notes}}
        )

    def unpack(self, state: State, scheduler: Any, objects: Mapping[str, checkpoint_format.Stateful]) -> None:
        tensors, notes = state.tensors.get("islands", {}), state.values.get("islands")
        if not isinstance(notes, dict) or notes.keys() != {str(number) for number in range(self._count)}:
            raise CheckpointError(f"the checkpoint does not hold the state of {self._count} islands.")
        super().unpack(state, scheduler, objects)
        self.optimizer.state = empty_state()
        for island in self._islands:
            island.unpack(tensors, notes[str(island.number)], state)
        self._velocity = {
            name: torch.empty_like(parameter.detach()).copy_(tensors[f"velocity/{name}"])
            for name, parameter in self._parameters.items()
            if f"velocity/{name}" in tensors
        }
        self._moving = [name for name in self._parameters if f"0/weights/{name}" in tensors]
        self._common, self.whole = self._checksum_of_model(), None

    def extra_state(self) -> dict[str, Any]:
        return {"rounds": self._rounds, "since": self._since}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self._rounds, self._since = state["rounds"], state["since"]

    def report(self) -> dict[str, Any]:
        """See `Strategy.report`: how often the islands have met, and the steps since."""
        return {"islands": self._count, "island_rounds": self._rounds, "steps_since_round": self._since}

    def _start_islands(self, step: int) -> None:
        """Let the islands begin a round, or go on with it."""
        if any(self.optimizer.state.values()):
            raise StepError(
                f"step {step}: the optimizer was given a state between steps (load_state_dict?), which would be lost: "
                "its islands hold their own. Hint: load it before run.prepare(), or leave island_steps out."
            )
        if self._reads is None:
            self._look_at_common(step, self._checksum_of_model())
        else:
            self._reads.forget()
            look: Callable[..., None] = lambda *parts: self._look_at_common(step, add_checksums(map(int, parts)))  # noqa: E731
            self._reads.ask(self._checksum.parts(self._held), look)
        trainable = {name for name, parameter in self._parameters.items() if parameter.requires_grad}
        if self._since == 0:
            self._moving = [name for name in self._parameters if name in trainable]
            for island in self._islands:
                island.start_round(self._moving)
        elif not trainable <= {*self._moving}:  # thawed on the way; what is frozen on the way still meets
            self._moving = [name for name in self._parameters if name in trainable or name in self._moving]
            for island in self._islands:
                island.own(self._moving)

    def _look_at_common(self, step: int, common: int) -> None:
        """Keep the checksum of what the model holds as a round begins, and refuse another one within it."""
        if self._since == 0:
            self._common = common
        elif common != self._common:
            raise StepError(
                f"step {step}: the model's weights or buffers were changed between steps, {self._since} of "
                f"{self._steps} steps after its islands have met: they hold their own until they meet again, and the "
                f"change would be lost. Hint: change them where a round ends, after every {self._steps} updates, or "
                "leave island_steps out."
            )

    def _read(self, reads: DeviceReads) -> None:
        """Wait for the GPU, and conclude what was open until then."""
        reads.read()
        for island in self._islands:
            with island.inside():
                island.conclude()

    def _compute(
        self, island: Island, step: int, mine: Iterator[Micro], shares: Shares, objective: Objective,
        report: StepReport,
    ) -> None:  # fmt: skip
        """Run the passes of an island's replicas."""
        expected = [replica for replica in island.replicas if replica < shares.leaves]
        samples = sum(shares.sizes[replica] for replica in expected)
        with island.inside():
            island.start_step(len(expected))
            for replica in expected:
                micro = next(mine, None)
                if micro is None or micro.replica != replica:
                    got = "nothing" if micro is None else f"that of replica {micro.replica}"
                    raise StepError(f"step {step}: expected the micro-batch of replica {replica}, got {got}.")
                weight = shares.sizes[replica] / samples
                island.start_replica()
                loss, _ = run_backward(
                    objective, micro, samples, seed=self.context.seed, step=step, replicas=self.replicas
                )
                found = island.add(replica, weight)
                if self._reads is None:
                    report.note(replica, loss.item(), is_finite=found)
                else:
                    self._reads.ask([loss, *found], functools.partial(report.note_read, replica, 0.0))
            island.finish_step()
        report.present |= island.present

    def _meet(self) -> None:
        """Move the common weights by what the islands have moved by on average, and merge their buffers; collective."""
        live = {name: self._parameters[name].detach() for name in self._moving}
        moved, total = self._moved, self._sum
        if total is None or [*moved] != self._moving:
            self.close()
            moved = self._moved = {name: nn.Parameter(weights) for name, weights in live.items()}
            total = LeafSum(moved, self._buffers, self.transport, overlaps=False, codec=self.options.codec)
            self._sum = total
        share = 1 / self._count
        report = StepReport(0, len(moved), self._buffers.num_buffers, self._buffers.num_counted)
        total.start_step(self._count)
        self._buffers.start_step()
        for island in self._islands:
            for name, parameter in moved.items():
                parameter.grad = (live[name] - island.weights[name]).mul_(share)
            self._buffers.start_replica()
            island.put_buffers()
            floats = self._buffers.collect(share, report.changed, self._reads)
            total.add(island.number, floats, report.present, lambda *_: True)  # what is finite was looked at before
        total.send(self._hosted)
        total.finish_unread()
        self._buffers.tell(report.counted, self._reads)
        if self._reads is not None:
            self._reads.read()
        heads = [told.head for told in report.merge(self.transport, RankReport(self.transport.step or 0, self._common))]
        self._buffers.start_replica()
        compare(heads, self._parameters, self.transport)
        total.finish_step(report.present, report.changed, report.counted, is_kept=True)
        if self._momentum:
            for name, weights in live.items():
                if name not in self._velocity:
                    self._velocity[name] = torch.zeros_like(weights)
        outer_step(
            [*live.values()], [parameter.grad for parameter in moved.values() if parameter.grad is not None],
            [self._velocity[name] for name in live if self._momentum], lr=self._lr, momentum=self._momentum,
        )  # fmt: skip

    def close(self) -> None:
        if self._sum is not None:
            self._sum.close()

    def _checksum_of_model(self) -> int:
        return checksum(self._held)


def _check_apart(parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuse (`ConfigError`) parameters that share memory without being one: islands give each memory of its own."""
    seen: dict[int, str] = {}
    for name, parameter in parameters.items():
        if parameter.numel() and (other := seen.setdefault(parameter.data_ptr(), name)) != name:
            raise ConfigError(
                f"the parameters {other!r} and {name!r} lie in the same memory, which islands with weights of their "
                "own would tear apart. Hint: tie them as one nn.Parameter, or leave island_steps out."
            )
