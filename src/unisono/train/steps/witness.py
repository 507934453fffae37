"""A run's side of the witness: from where it has other ranks' micro-batches, and how a rank that is wrong goes.

In: what the strategy asks for. Out: data fetched anew, and the end of this process where it is the one that is wrong.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unisono.data.batches import move
from unisono.data.loader import Loader
from unisono.data.sources.stream_loader import StreamLoader
from unisono.strategies.base import Micro
from unisono.strategies.exact import Exact
from unisono.strategies.witness.witness import refuse_witness
from unisono.system.messages import tell

if TYPE_CHECKING:  # they make use of this file
    from unisono.train.steps.membership import Live
    from unisono.train.steps.stepper import Stepper


def watch(rate: float, stepper: "Stepper", loader: Loader | StreamLoader, live: "Live | None") -> None:
    """Let a run's strategy have what its witnesses need.

    Raises:
        ConfigError: A micro-batch cannot be had or computed twice.
    """
    if isinstance(loader, StreamLoader):
        refuse_witness("the data is a stream, which is read once")
    if stepper.parts.takes_closure:
        refuse_witness("the optimizer itself computes a step several times (a closure)")
    if stepper.parts.updates:
        refuse_witness("a batch has several updates, of several optimizers")
    strategy, setting, link, sampler = stepper.parts.strategy, stepper._setting, stepper._link, loader.sampler
    assert isinstance(strategy, Exact)
    witness = strategy.watch(rate)

    def fetch(step: int, replica: int) -> Iterator[Micro]:
        def micros() -> Iterator[Micro]:
            num_samples = len(sampler.micro_batches(step)[replica])
            yield Micro(replica, num_samples, move(loader.micro_batch(step, replica), setting.device))

        return link.follow(micros(), sampler.batch(step), setting.replicas)

    def put_out(wrong: Sequence[int], text: str) -> None:
        transport = setting.transport
        rank = transport.rank
        if rank == min({*range(transport.world_size)} - {*wrong}):
            tell(text)
        if rank in wrong:
            os.kill(os.getpid(), signal.SIGKILL)  # the launcher sees it, and the others go on
        transport.barrier()  # which never comes: out of it, `WorldChanged`

    witness.fetch = fetch
    witness.put_out = put_out if live is not None and live.is_possible else None
