"""What a loop of the program's own shows: on a terminal what is trained where, then a line of progress now and then.

In: a run and its batches. Out: whole lines on standard error, which other lines may stand between; in a cell of a
notebook the bar that a launch has. A look at the clock for each step. Where standard error is no terminal (a pipe, a
log) there is a line after five seconds and then one a minute; nothing beside a bar that the program draws with tqdm.
"""

import shlex
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path

from unisono.data.plans.batch_schedule import Cuts
from unisono.launchers.cell import CellBar, cell_bar
from unisono.observe.phases import DATA, PhaseClock
from unisono.observe.progress import PLAIN_EVERY_S, WIDE, WIDEST, eta, pace
from unisono.observe.speed import Speed
from unisono.system.heartbeat import Reading
from unisono.system.messages import tell
from unisono.train.steps.loop import Batch
from unisono.world import World

Where = tuple[str, Path | None]
_IN_LOGS_FIRST_S, _IN_LOGS_EVERY_S = 5.0, 60.0
_LEAST_WIDTH = 30  # of a terminal


def shown(
    steps: Generator[Batch], world: World, where: Where, last: int, cuts: Cuts | None, loss: Callable[[], float],
    phases: PhaseClock, speed: Callable[[], Speed | None],
) -> Generator[Batch]:  # fmt: skip
    """Pass on a run's batches, and show how far they are, if this process is the leader's and has where to show it.

    Args:
        steps: The batches.
        world: Of this process.
        where: What is trained on what, and the run directory.
        last: The last step.
        cuts: Where epochs end, if that is known.
        loss: Returns that of the step before.
        phases: Knows which share of the time went into waiting for data.
        speed: Returns the speed of the last steps.
    """
    if not world.is_leader or threading.current_thread() is not threading.main_thread():
        return steps
    bar = cell_bar()
    if bar.is_drawn:
        return with_bar(steps, bar, last, loss)
    is_seen = sys.stderr is not None and sys.stderr.isatty()
    return with_lines(steps, where, last, cuts, loss, phases, speed, is_seen=is_seen)


def with_bar(steps: Generator[Batch], bar: CellBar, last: int, loss: Callable[[], float]) -> Generator[Batch]:
    """Pass on batches, and draw them in the cell; the arguments are those of `shown`."""
    told: Callable[[], dict[int, Reading]] = dict
    done, known = 0, last if last < sys.maxsize else 0
    try:
        with closing(steps):
            for batch in steps:
                yield batch
                done = batch.step
                told = partial(_told, done, known, loss)
                bar.look(told)
    finally:
        if done:  # a run that is refused in its first step has nothing to show
            bar.end(told, "done" if done == last else "stopped")


def _told(done: int, last: int, loss: Callable[[], float]) -> dict[int, Reading]:
    return {0: Reading(done=done, last=last, loss=loss(), phase="training")}


def with_lines(
    steps: Generator[Batch], where: Where, last: int, cuts: Cuts | None, loss: Callable[[], float],
    phases: PhaseClock, speed: Callable[[], Speed | None], *, is_seen: bool,
) -> Generator[Batch]:  # fmt: skip
    """Pass on batches, and show lines; the arguments are those of `shown`.

    In a log, which nobody has been seen to read (not `is_seen`), a run of less than five seconds leaves nothing.
    """
    begun, following, first = 0.0, 0.0, 0
    terminal = shutil.get_terminal_size().columns
    columns = max(WIDE, terminal) if is_seen else WIDEST
    has_told, every_s = False, PLAIN_EVERY_S if is_seen else _IN_LOGS_EVERY_S
    is_known = last < sys.maxsize  # not of a stream without an end
    total, of = (f"/{last}", f"/{cuts.epoch_of(last) + 1}") if is_known and cuts is not None else ("", "")
    with closing(steps):
        for batch in steps:
            if not first:
                begun, first = time.monotonic(), batch.step
                following = begun + (every_s if is_seen else _IN_LOGS_FIRST_S)
                if is_seen:
                    _tell(_start(*where))
                    has_told = True
            yield batch
            now = time.monotonic()
            if now < following and not (has_told and batch.step == last):
                continue
            if not has_told:
                _tell(_start(*where))
                has_told = True
            following = now + every_s
            left = eta(now - begun, batch.step - first + 1, last - batch.step) if is_known else ""
            told = (
                f"epoch {batch.epoch + 1}{of}  step {batch.step}{total}  loss {loss():.4f}"
                f"{pace(speed(), phases.share(DATA), columns)}{left}"
            )
            width = max(_LEAST_WIDTH, terminal - len("unisono: ") - 1) if is_seen else len(told) + 1
            _tell("\n".join(textwrap.wrap(told, width, subsequent_indent="  ", break_on_hyphens=False)))


def _start(what: str, out: Path | None) -> str:
    if out is None:
        return f"{what}; nothing is kept"
    return f"{what}; in {out}\nfollow it: {shlex.join(['unisono', 'watch', str(out)])}"


def _tell(line: str) -> None:
    """Show a line, unless it would break a bar that the program draws with tqdm."""
    if not getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ()):
        tell(line)
