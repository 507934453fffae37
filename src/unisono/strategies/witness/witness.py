"""A rank computes a replica of another one a second time; where the bits differ, all ranks compute it and judge.

What is compared is one number of 64 bits: of the replica's loss, weight, gradients, and of the buffers that it leaves.
It rides in the report that the ranks exchange in every step anyway. Only where two numbers differ the ranks meet once
more, before anything of the model has been written to.
"""

import functools
import hashlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, final

from torch import Tensor, nn

from unisono.determinism.device_reads import DeviceReads
from unisono.determinism.switches import add_checksums, checksum, checksum_part
from unisono.errors import ConfigError, PeerLost, RankDivergence
from unisono.strategies.base import Micro, StrategyContext
from unisono.strategies.objective import Objective
from unisono.strategies.parts.backward import add_gradient, key_generators
from unisono.strategies.parts.flat import strided
from unisono.strategies.parts.replica_buffers import ReplicaBuffers
from unisono.strategies.parts.report import RankReport
from unisono.strategies.parts.streams import capture, restore
from unisono.strategies.witness.choice import Watched, choose, culprits, steps_to_detection


def refuse_witness(why: str) -> NoReturn:
    """Refuse (`ConfigError`) where a replica cannot be computed a second time."""
    raise ConfigError(
        f"witness: a replica cannot be computed a second time where {why}. Hint: leave --witness (witness=) out."
    )


@final
class Witness:
    """The second computations of one rank.

    Args:
        rate: In this share of the steps there is one.
        context: Where the strategy works.
        buffers: Of the model.
        sparse: Parameters whose gradients may be sparse, by name.

    Attributes:
        fetch: Returns the micro-batch of a step and replica, whoever computes it; the run sets it.
        put_out: Says why, and ends this rank or waits until others have ended; None: an error ends all.
    """

    def __init__(
        self, rate: float, context: StrategyContext, buffers: ReplicaBuffers, sparse: Iterable[str]
    ) -> None:  # fmt: skip
        self._rate, self._context, self._buffers, self._sparse = rate, context, buffers, frozenset(sparse)
        self.fetch: Callable[[int, int], Iterable[Micro]]
        self.put_out: Callable[[Sequence[int], str], None] | None = None
        self._watched: Watched | None = None
        self._steps = self._checked = self._mismatches = 0
        self._found: list[dict[str, Any]] = []
        self._right: list[int] = []  # of each rank the last step in which another one has had its bits
        self._began = 0.0

    def begin(self, step: int, num_samples: int, leaves: int, objective: Objective) -> int:
        """Begin a step; return the replica for which this rank is to `sign`, being its owner; -1: none."""
        self._began = self._began or time.monotonic()
        context, rank = self._context, self._context.transport.rank
        self._step, self._num_samples, self._objective = step, num_samples, objective
        self._watched = watched = choose(context.seed, step, context.placement, leaves, self._rate)
        self._own = 0
        return watched.replica if watched is not None and watched.owner == rank else -1

    def sign(
        self, loss: Tensor, weight: float, trained: Mapping[str, nn.Parameter], reads: DeviceReads | None = None
    ) -> None:
        """Look at what a replica has left in gradients and buffers, at once, or let `reads` do it."""
        self._leaf(loss, weight, trained, reads)

    def look_again(self, trained: Mapping[str, nn.Parameter], reads: DeviceReads | None = None) -> None:
        """Compute the replica that two compute, if this rank is its witness, as `sign` looks at one."""
        if self._watched is not None and self._watched.witness == self._context.transport.rank:
            self._compute(self._watched.replica, trained, reads)

    def tell(self) -> int:
        """Return what this rank says of the replica that two compute, 0 if it is neither."""
        return self._own

    def compare(self, told: Sequence[RankReport], trained: Mapping[str, nn.Parameter]) -> None:
        """Return if both have said the same; else find out who is wrong; collective then.

        Raises:
            RankDivergence: This rank is wrong, or nobody knows who is.
            PeerLost: Another one is.
        """
        watched = self._watched
        self._steps += 1
        if watched is None:
            return
        self._checked += 1
        if len(self._right) != len(told):  # ranks have gone, and the others have other numbers
            self._right = [min(self._right, default=0)] * len(told)
        if told[watched.owner].gradient != told[watched.witness].gradient:
            self._mismatches += 1
            self._judge(watched, told, trained)
        self._right[watched.owner] = self._right[watched.witness] = self._step

    def report(self) -> dict[str, Any]:
        """Return what ``result.json`` says."""
        context, steps = self._context, self._steps
        expected = None
        if steps and context.transport.world_size > 1:
            expected = steps_to_detection(context.placement, context.replicas, self._rate)
        step_s = (time.monotonic() - self._began) / max(1, steps)
        seen = max((one["step"] - one["last_right"] for one in self._found), default=None)
        return {
            "rate": self._rate,
            "replicas_checked": self._checked,
            "mismatches": self._mismatches,
            **({"put_out": self._found} if self._found else {}),
            "expected_steps_to_detection": expected and round(expected, 1),
            "expected_s_to_detection": expected and round(expected * step_s, 3),
            "seen_steps_to_detection": seen,
            "seen_s_to_detection": seen and round(seen * step_s, 3),
        }

    def _judge(self, watched: Watched, told: Sequence[RankReport], trained: Mapping[str, nn.Parameter]) -> None:
        transport, replica = self._context.transport, watched.replica
        self._own = 0  # where the replica has no micro-batch
        self._compute(replica, trained)
        own = [self._own, os.getpid(), socket.gethostname()]
        again = transport.all_gather_json(own)
        votes = [vote for vote, *_ in again]
        for rank in (watched.owner, watched.witness):
            votes[rank] = told[rank].gradient
        names = [f"rank {rank} (process {pid} on {host})" for rank, (_, pid, host) in enumerate(again)]
        if not (wrong := culprits(votes)):
            self._refuse(watched, votes, names)
        where = f"step {self._step}: replica {replica}"
        right = votes[next(rank for rank in range(len(votes)) if rank not in wrong)]
        said = []
        for rank in wrong:
            second = again[rank][0]
            how = "right" if second == right else "the same" if second == votes[rank] else "wrong in another way"
            since = f"last seen right in step {self._right[rank]}" if self._right[rank] else "never seen right"
            said.append(f"{names[rank]}, {since}, has computed {votes[rank]:016x}, and the second time {how}")
            self._found.append({
                "step": self._step, "replica": replica, "rank": rank, "pid": again[rank][1], "host": again[rank][2],
                "again": second != right, "last_right": self._right[rank],
            })  # fmt: skip
        text = (
            f"{where} has the bits {right:016x} on {len(votes) - len(wrong)} ranks, but {' and '.join(said)}. "
            f"Nothing of step {self._step} has been applied; what was computed there since, and was not compared, has."
        )
        if self.put_out is not None:
            self.put_out(wrong, text)
        if transport.rank in wrong:
            raise RankDivergence(f"{text} Hint: {_HINT}")
        raise PeerLost(f"{where} is wrong on rank {', '.join(map(str, wrong))}, which says more.")

    def _refuse(self, watched: Watched, votes: Sequence[int], names: Sequence[str]) -> NoReturn:
        computed = "; ".join(f"{votes[rank]:016x} on {name}" for rank, name in enumerate(names[:8]))
        few = "one of the two is wrong, three workers tell which; " if len(votes) == 2 else ""
        raise RankDivergence(
            f"step {self._step}: replica {watched.replica} has been computed by all ranks, and no bits are those of "
            f"most: {computed}. Nothing of the step has been applied. Hint: {few}{_HINT}"
        )

    def _compute(self, replica: int, trained: Mapping[str, nn.Parameter], reads: DeviceReads | None = None) -> None:
        """Compute and sign a replica, and put generators, buffers and gradients back as they were."""
        context, objective, buffers = self._context, self._objective, self._buffers
        streams = capture(context.device)
        try:
            for micro in self.fetch(self._step, replica):
                buffers.start_replica()
                key_generators(context.seed, objective.key(self._step, replica))
                how: Any = {"step": self._step, "replicas": context.replicas}
                loss, weight = add_gradient(objective, micro, self._num_samples, **how)
                self._leaf(loss, weight, trained, reads)
        finally:
            for parameter in trained.values():
                parameter.grad = None
            buffers.start_replica()
            restore(streams, context.device)

    def _leaf(
        self, loss: Tensor, weight: float, trained: Mapping[str, nn.Parameter], reads: DeviceReads | None
    ) -> None:
        """Make one number of what a replica has left."""
        found = [strided(name, parameter.grad, self._sparse) for name, parameter in trained.items()]
        absent = [index for index, grad in enumerate(found) if grad is None]
        there = [*(grad for grad in found if grad is not None), *self._buffers.present()]
        if reads is None:
            self._take(weight, absent, loss, checksum(there))
        else:
            reads.ask([loss, *map(checksum_part, there)], functools.partial(self._take, weight, absent))

    def _take(self, weight: float, absent: Sequence[int], loss: Tensor, *parts: Tensor | int) -> None:
        words = repr((add_checksums(map(int, parts)), float(loss).hex(), weight.hex(), absent)).encode()
        self._own = int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little")


_HINT = (
    "the machine's memory, CPU or GPU is faulty, or the program computes what depends on the rank (a clock, a file of "
    "one host, a generator of its own). The same command goes on from the last checkpoint; on another machine, where "
    "it happens again."
)
