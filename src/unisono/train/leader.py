"""One rank decides, all ranks know: what the leader finds, or why it stops."""

from collections.abc import Callable
from typing import Any

from unisono.collectives.transport import Transport
from unisono.errors import LeaderFailed


def leader_says(transport: Transport, act: Callable[[], Any]) -> Any:
    """Return on all ranks what `act` returns on the leader; where it fails, all ranks stop with one explanation.

    Collective; blocks until the leader is done.

    Args:
        transport: Joins the ranks; rank 0 is the leader.
        act: Called on the leader only; returns something JSON-able.

    Raises:
        Exception: On the leader, what `act` has raised.
        LeaderFailed: On the others, with the leader's words.
    """
    answer: Any = None
    failure: Exception | None = None
    if transport.rank == 0:
        try:
            answer = act()
        except Exception as error:  # noqa: BLE001 - every rank must hear of it; raised again below
            failure = error
    told = transport.all_gather_json([answer, failure and f"{type(failure).__name__}: {failure}"])[0]
    if failure is not None:
        raise failure
    if told[1] is not None:
        raise LeaderFailed(f"rank 0 stopped the run: {told[1]}")
    return told[0]
