"""A worker that kills itself at a named meeting of a step: what ``unisono chaos --live --every-meeting`` starts.

In: as arguments, the places as JSON (by the worker's number, each a step, a meeting of it from 1, and ``before``,
``inside`` or ``behind``), then ``script PATH ARGS...`` or ``recipe NAME OPTIONS-as-JSON``. A meeting that a step does
not have kills nobody.
"""

import functools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any, final

from unisono.system.heartbeat import HeartbeatPage
from unisono.world import World

WHENS = ("before", "inside", "behind")
"""Not having come to a meeting, while waiting in it for others, having passed it."""

_Function = Callable[..., Any]


@final
class Places:
    """Where this process kills itself.

    Args:
        places: Steps, meetings of them from 1, and one of `WHENS`.
        step: Returns the step in progress; 0 before the first.
        die: Ends this process.
    """

    def __init__(
        self, places: Iterable[tuple[int, int, str]], step: Callable[[], int], die: Callable[[], None]
    ) -> None:
        self._places, self._step, self._die = {*places}, step, die
        self._now = self._meeting = 0

    def meets(self) -> None:
        """Take a meeting into account that is about to begin."""
        if (step := self._step()) != self._now:
            self._now, self._meeting = step, 0
        self._meeting += 1
        self.at("before")

    def at(self, when: str) -> None:
        """Die, if this is the place."""
        if (self._now, self._meeting, when) in self._places:
            self._die()


def watch(places: Places) -> None:
    """Let every meeting of this process be one of `places`; of an exchange over gloo, each of its parts.

    Those are what the ranks agree by, each bucket, and the seal; a rank is inside when a message has left, or is
    waited for.
    """
    from unisono.collectives.process_groups.exchange import PieceExchange
    from unisono.collectives.process_groups.live_groups import LiveGroupTransport
    from unisono.collectives.process_groups.live_waits import LiveWaits
    from unisono.collectives.shm import board as boards

    barrier = boards.SharedBoard.barrier
    part, begin, end = (functools.partial(how, places) for how in (_part, _begin, _end))

    def of_all(board: boards.SharedBoard, note: bytes) -> Any:
        # One of a host's ranks alone is a piece of an exchange's part, in another thread.
        return (barrier if board.world_size < board.num_ranks else part(barrier))(board, note)

    hooks: list[tuple[Any, str, Callable[[_Function], _Function]]] = [
        (boards.SharedBoard, "barrier", lambda _: of_all), (boards, "take", begin),
        (LiveGroupTransport, "_meet", part), (LiveGroupTransport, "begin_meeting", begin),
        (PieceExchange, "give", part), (PieceExchange, "_send", end),
        (LiveWaits, "agree", part), (LiveWaits, "seal", part), (LiveWaits, "wait", begin),
    ]  # fmt: skip
    for owner, name, around in hooks:
        setattr(owner, name, around(getattr(owner, name)))


def _part(places: Places, function: _Function) -> _Function:
    def met(*args: Any) -> Any:
        places.meets()
        found = function(*args)
        places.at("behind")
        return found

    return met


def _begin(places: Places, function: _Function) -> _Function:
    def begun(*args: Any) -> Any:
        places.at("inside")
        return function(*args)

    return begun


def _end(places: Places, function: _Function) -> _Function:
    def ended(*args: Any) -> Any:
        found = function(*args)
        places.at("inside")
        return found

    return ended


def _train(recipe: str, options: dict[str, Any]) -> None:
    from unisono.experiments.job import plan
    from unisono.recipes.execute import execute

    execute(plan(recipe, "1", options).options)


def main(argv: list[str]) -> None:
    """Run the program that is named."""
    told, kind, target, *args = argv
    world = World.current()
    own = json.loads(told).get(str(world.rank if world.joins is None else world.joins), [])
    if own and world.heartbeat is not None:
        page = HeartbeatPage(world.heartbeat)
        die = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        watch(Places([(step, meeting, when) for step, meeting, when in own], lambda: page.read().step, die))
    if kind == "recipe":
        _train(target, json.loads(args[0]))
    else:
        from unisono.launchers.worker.child import run_script

        run_script(target, args, world.local_rank)


if __name__ == "__main__":
    main(sys.argv[1:])
