"""All callbacks of a trainer as one: called in order, on the right ranks, watched, agreed on."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

from unisono.collectives.places import check_places, only_here
from unisono.metrics.exchange import check_keys
from unisono.train.callbacks.base import Callback, Loop, check_names, name_of
from unisono.train.callbacks.deadline import CallbackDeadline

HOOKS = (
    "setup", "on_run_start", "on_epoch_start", "on_step_start", "on_step_end", "on_evaluation_start",
    "on_evaluation_end", "on_epoch_end", "on_log", "on_run_end", "on_world_change",
)  # fmt: skip


@final
class Chain:
    """Calls the hooks of callbacks.

    Raises:
        ConfigError: Two callbacks share a name.
        PlaceError: A callback cannot run with this many ranks.
    """

    def __init__(self, callbacks: Sequence[Callback], loop: Loop, *, deadline_s: float) -> None:
        self.callbacks = list(callbacks)
        check_names(self.callbacks)
        check_places({f"callback {name_of(callback)!r}": callback for callback in self.callbacks}, loop.run.world)
        self._loop = loop
        self._world = loop.run.world
        self._take(c for c in self.callbacks if c.runs_on != "leader" or self._world.is_leader)
        self._deadline = CallbackDeadline(deadline_s)
        try:
            self("setup")
        finally:
            self._deadline.close()  # nothing is watched until the training begins, and it may never begin
        for callback in self.callbacks:
            if _overrides(callback, "state_dict"):
                loop.run.register(f"callback/{name_of(callback)}", callback)

    def _take(self, here: Iterable[Callback]) -> None:
        """Call these from now on."""
        here = list(here)
        self._hooks = {hook: [_Hook(c, hook) for c in here if _overrides(c, hook)] for hook in HOOKS}
        self._may_draw = {hook: any(each.callback.draws for each in found) for hook, found in self._hooks.items()}

    def __call__(self, hook: str, *args: Any) -> None:
        """Call one hook of every callback that has it.

        Raises:
            CallbackTimeout: One took longer than the deadline.
            Exception: What a callback has raised, with a note where.
        """
        if not (hooks := self._hooks[hook]):
            return
        if self._may_draw[hook]:
            self._loop.run.between.settle()
        for each in hooks:
            what = each.what
            try:
                if each.is_leaders:
                    with only_here(f"callback {what}", self._world):
                        self._deadline.call(what, self._loop.step, each.method, self._loop, *args)
                else:
                    self._deadline.call(what, self._loop.step, each.method, self._loop, *args)
            except Exception as error:
                error.add_note(
                    f"in callback {what}, step {self._loop.step}, on rank {self._world.rank} of "
                    f"{self._world.world_size}; the other ranks have stopped because of it"
                )
                raise

    def begin(self) -> None:
        """Call `on_run_start`, in the world as it is now."""
        self._world = self._loop.run.world
        self("on_run_start")

    def follow_world(self) -> None:
        """Tell the callbacks when ranks have died or joined; a new leader begins those of the leader."""
        old, new = self._world, self._loop.run.world
        if new is old:
            return
        self._world = new
        if new.is_leader and not old.is_leader:
            self._take(c for c in self.callbacks if c.runs_on == "leader")
            self("setup")
            self("on_run_start")
            self._take(self.callbacks)
        self("on_world_change", old, new)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to call."""
        return not self.callbacks

    def agree(self) -> dict[str, float]:
        """Compare what the ranks log (`RankDivergence`) and whether they stop; return the values; collective."""
        loop = self._loop
        mine: Any = [sorted(loop.pending), loop.stopped_by]
        transport = loop.run.transport
        everyone = [mine] if self._world.world_size == 1 else transport.again(lambda: transport.all_gather_json(mine))
        self.follow_world()
        check_keys([names for names, _ in everyone])
        loop.stopped_by = next((reason for _, reason in everyone if reason), None)
        values, loop.pending = loop.pending, {}
        if values:
            self("on_log", values)
        return values

    def close(self) -> None:
        """Close every callback, whatever the others do; safe to call twice."""
        self._deadline.close()
        with contextlib.ExitStack() as stack:
            for callback in self.callbacks:
                if callback.runs_on != "leader" or self._world.is_leader:
                    stack.callback(callback.close)


@final
class _Hook:
    """One hook of one callback, bound once."""

    def __init__(self, callback: Callback, hook: str) -> None:
        self.callback, self.what = callback, f"{name_of(callback)}.{hook}"
        self.is_leaders = callback.runs_on == "leader"
        self.method: Callable[..., None] = getattr(callback, hook)


def _overrides(callback: Callback, name: str) -> bool:
    method: Callable[..., Any] = getattr(type(callback), name)
    return method is not getattr(Callback, name)
