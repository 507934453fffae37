"""Loops over epochs of the program's own, in a resumed run: those that are done are gone through once more.

``for epoch in range(9): for batch in run.steps(loader, epochs=epoch + 1): ...; schedule.step()`` calls what stands
behind the inner loop for done epochs too, and the checkpoint holds what came of it already.
"""

import copy
import inspect
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, Protocol, TypeVar, final

import numpy as np
import torch
from torch import Tensor

from unisono.collectives.places import current_world
from unisono.errors import ConfigError, StepError
from unisono.system.messages import warn
from unisono.train.guards.loop_carried import describe_loop_carried, describe_rates, loop_carried
from unisono.train.trained_parts import Parts

T = TypeVar("T")


ONCE = "Hint: one run.step() for each batch; to accumulate gradients take a larger batch_size."


class _HasLoops(Protocol):
    """What knows how many loops have begun, and the last step of the newest."""

    loops: list[int]


def alone(batches: Generator[T], run: _HasLoops) -> Generator[T]:
    """Pass on a loop's batches as long as no other loop over steps has begun.

    Raises:
        StepError: One has begun: it has taken over the data.
    """
    number = run.loops[0]
    with closing(batches):
        for batch in batches:
            yield batch
            if run.loops[0] != number:
                raise StepError(
                    "another loop over run.steps() has begun within this one, as zip(run.steps(a), run.steps(b)) does. "
                    "Hint: one loop, over one data set whose samples hold what belongs together."
                )


@final
class DoneLoops:
    """Puts back what the program has moved behind loops whose last step lies before that of the checkpoint.

    What stands behind the loop that ends with the checkpoint's own step has not been done: the step was saved before.

    Args:
        parts: Of the run: the registered ones, and the settings of the optimizers, are looked at.
        tell: Is given what was put back, in words, once.
        is_kept: Whether checkpoints are written: a later launch may go on with the run.
        live: What lets workers join it; None: none does.
    """

    def __init__(
        self, parts: Parts, tell: Callable[[str], None], *, is_kept: bool = False, live: object = None
    ) -> None:
        parts.unkept.matters = is_kept or live is not None
        self._parts, self._tell, self._is_kept = parts, tell, is_kept
        self._kept: dict[str, Any] | None = None
        self._has_looked = False  # for variables that the loop carries

    def begin(self, done: int, last: int) -> None:
        """Look at a loop that is about to begin, up to step `last`, of a run that has done `done`."""
        self._parts.unkept.forget()
        if self._kept is not None:
            self._put_back(self._kept)
        if (
            done < last
            and (done or self._is_kept)
            and not self._has_looked
            and (current_world().is_leader or current_world().joins is not None)
            and (text := self._describe_carried(done))
        ):
            warn(text)
        is_first = done < last and not self._has_looked and current_world().is_leader
        if is_first and (text := describe_rates(inspect.currentframe())):
            warn(text)
        if done < last and not self._has_looked and self._parts.replaced:
            self._tell_replaced(done)
        self._has_looked = True
        if last <= done:
            for each in self._parts.optimizers.values():  # earlier; torch warns of schedules otherwise
                each._opt_called = True  # type: ignore[attr-defined]
        self._kept = copy.deepcopy(self._state()) if last < done else None

    def _describe_carried(self, done: int) -> str:
        found = loop_carried(inspect.currentframe(), self._parts.registered.values())
        self._parts.unkept.told.update(*({each.name, *each.made} for each in found))
        return describe_loop_carried(found, is_resumed=done > 0)

    def _tell_replaced(self, done: int) -> None:
        replaced = self._parts.replaced
        told = [
            f"{key}={loaded!r}, not {value!r}, in {name and f'{name}: '}group {number}"
            for name, number, key, value, loaded in replaced
        ]
        name, number, key, value, _ = replaced[0]
        self._tell(
            f"goes on with the optimizer's settings of the checkpoint: {'; '.join(told)}. The program has set the "
            "other after run.prepare(), and a checkpoint replaces it. Hint: to change it from here on, set it in the "
            f"loop, if batch.step == {done + 1}: optimizer{name and f'_{name}'}.param_groups[{number}][{key!r}] = "
            f"{value!r}."
        )

    def _state(self) -> dict[str, Any]:
        found = {repr(name): part.state_dict() for name, part in self._parts.registered.items()}
        for name, each in self._parts.optimizers.items():
            settings = [{key: value for key, value in group.items() if key != "params"} for group in each.param_groups]
            found[f"the optimizer{name and f' {name}'}"] = settings
        return found

    def _put_back(self, kept: dict[str, Any]) -> None:
        now = self._state()
        moved = [name for name, state in kept.items() if not _is_same(state, now[name])]
        if not moved:
            return
        for name, part in self._parts.registered.items():
            if repr(name) in moved:
                part.load_state_dict(copy.deepcopy(kept[repr(name)]))
        for name, each in self._parts.optimizers.items():
            for group, settings in zip(each.param_groups, kept[f"the optimizer{name and f' {name}'}"], strict=False):
                group.update(copy.deepcopy(settings))
        tell, self._tell = self._tell, lambda _: None
        tell(
            f"puts {', '.join(moved)} back to what the checkpoint holds: the program has changed it behind run.steps() "
            "for epochs that were done before this launch, and did so when it did them."
        )


def nothing_to_do(done: int, last: int, before: int, *, is_first: bool) -> str:
    """Return what is said of a loop up to step `last` in a run that has done `done`; empty where it is no news.

    Raises:
        ConfigError: The loop before it has ended no earlier (after step `before`): this is a loop over epochs.
    """
    if last <= before and last != current_world().last_step:  # where `replay` ends every loop
        raise ConfigError(
            f"run.steps() has nothing to do: epochs= and max_steps= count from the run's beginning, and step "
            f"{done} of {last} is done. Hint: all epochs in one loop, run.steps(loader, epochs=10), where "
            "batch.epoch says which one it is; or run.steps(loader, epochs=epoch + 1) in a loop over epochs."
        )
    if done == last:
        return (
            f"is complete: step {done} of {last} is done, there is nothing left to train. "
            "Hint: more epochs go on from here; another out= (--out) starts from the beginning."
        )
    return f"has come to step {done}: a loop that ends with step {last} has nothing left to do" if is_first else ""


def _is_same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return isinstance(right, Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_is_same(value, right[key]) for key, value in left.items())
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_is_same, left, right))
    return bool(left == right) or (left != left and right != right)
