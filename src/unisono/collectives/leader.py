"""One rank decides, all ranks know: what the leader, or each of some ranks, finds, or why it stops."""

from collections.abc import Callable
from typing import Any

from unisono.collectives.transport import Transport
from unisono.errors import LeaderFailed


def leader_says(transport: Transport, act: Callable[[], Any]) -> Any:
    """Return on all ranks what `act` returns on the leader; where it fails, all ranks stop with one explanation; rank 0
    is the leader, and what it returns is JSON-able.

    Collective; blocks until the leader is done.

    Raises:
        Exception: On the leader, what `act` has raised.
        LeaderFailed: On the others, with the leader's words.
    """
    return ranks_say(transport, transport.rank == 0, act)[0]


def ranks_say(transport: Transport, speaks: bool, act: Callable[[], Any]) -> list[Any]:
    """Return on all ranks what `act` returns on those that speak, in rank order; None for the others.

    Collective; blocks until all who speak are done. Where one fails, all ranks stop with one explanation.

    Raises:
        Exception: Where `act` has failed, what it has raised.
        LeaderFailed: On the others, with the words of the lowest rank that failed.
    """
    answer: Any = None
    failure: Exception | None = None
    if speaks:
        try:
            answer = act()
        except Exception as error:  # noqa: BLE001 - every rank must hear of it; raised again below
            failure = error
    told = transport.all_gather_json([answer, failure and f"{type(failure).__name__}: {failure}"])
    if failure is not None:
        raise failure
    for rank, (_, why) in enumerate(told):
        if why is not None:
            raise LeaderFailed(f"rank {rank} stopped the run: {why}")
    return [value for value, _ in told]
