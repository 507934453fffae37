"""What is said of a watched run, in words: how it does, how far it is, what happened; for the terminal and the page."""

import math
import shlex
import time
from collections.abc import Iterator

from unisono.launchers.program_files import of_a_run
from unisono.observe.progress import spell_left
from unisono.report.content import diverges, ends_of, trend_of
from unisono.report.run_view import how_it_ended, newest_checkpoint, strategy_in
from unisono.report.watch.state import WatchedRun, plain
from unisono.system.words import counted, spell_bytes, spell_seconds

_OUTSIDE = {"other": "the program's own code", "evaluate": "evaluations", "checkpoint": "checkpoints"}
_A_DAY_S = 86400.0


def verdict(run: WatchedRun) -> tuple[str, str]:
    """Return in one sentence how a run does, and the style in which it is shown: red where something is to be done."""
    eta_s, state = run.eta_s, run.state
    ends = ends_of(run.losses)
    loss = f"loss from {ends[0]:.4g} to {ends[1]:.4g}" if ends else "no loss yet"
    if state == "ended":
        saved = newest_checkpoint(run.path)
        again = f"goes on after step {saved:,}" if saved else "starts from the beginning: no checkpoint"
        bad = f"; {loss}: it diverges" if diverges(run.losses) else ""
        return f"{plain(how_it_ended(run.path, run.step))}{bad}. The same command {again}", "bold red"
    if diverges(run.losses):
        return f"the loss diverges: {loss}. Lower the learning rate, or set clip_norm", "bold red"
    if state == "stopped":
        of = f" of {run.num_steps:,}" if run.num_steps else ""
        return f"saved after step {run.step:,}{of}, the same command goes on; {loss}", "bold yellow"
    if state == "finished":
        return loss, "bold green"
    if state == "silent":
        return "no step for long: it waits, or was killed on another machine", "bold red"
    if state == "starting":
        return "no step yet", "bold cyan"
    if run.num_steps and run.step >= run.num_steps:
        return f"all {counted(run.num_steps, 'step')} are done, it is ending", "bold cyan"
    trend, slow = trend_of(run.losses), run.slowest()
    parts = [f"loss {trend}"] if trend else []
    parts = ["on track", *parts] if trend != "rising" else parts
    parts += [] if eta_s is None else [spell_left(eta_s)]
    parts += [f"rank {slow.rank} is slow by {slow.more:.0%}"] if slow is not None else []
    return ", ".join(parts), "bold cyan"


def setup(run: WatchedRun) -> str:
    """Return what trains, on how many workers, since which step it was resumed, and for how long it is running."""
    parts = [f"{strategy_in(run.score)}, {run.score.get('replicas', '?')} replicas"] if run.score else []
    if parts and run.ranks:
        parts[0] += f" on {counted(len(run.ranks.keys() - run.lost()), 'worker')}"
    elapsed = run.elapsed_s()
    parts += [f"resumed after step {run.resumed_after:,}"] if run.resumed_after else []
    return ", ".join([*parts, *([] if elapsed is None else [f"running for {_whole(elapsed)}"])])


def progress(run: WatchedRun) -> Iterator[str]:
    """Yield how far and how fast it is."""
    yield f"step {run.step:,}" + (f" of {run.num_steps:,}" if run.num_steps else "")
    yield f"epoch {run.epoch + 1}"
    if speed := run.speed:
        is_over = run.speed_is == "now" and run.state in {"silent", "ended"}
        yield f"{'last' if is_over else run.speed_is} {speed.by_clock:,.0f} samples/s"
        yield f"{speed.within:,.0f} in steps"
    if run.state in {"silent", "ended"} and math.isfinite(run.silent_s):
        yield f"last step {_whole(run.silent_s)} ago"


def row(run: WatchedRun) -> dict[str, str]:
    """Return a run as a line of a table, by the names of its columns: what matters most first."""
    speed, left_s = run.speed, run.eta_s
    return {
        "run": run.name[:24], "state": run.state,
        "step": f"{run.step:,}" + (f" of {run.num_steps:,}" if run.num_steps else ""),
        "loss": spelt(run.losses[-1][1]) if run.losses else "-",
        "samples/s": "-" if speed is None else f"{speed.by_clock:,.0f}",
        "left": "-" if left_s is None else _whole(left_s),
    } | {name: spelt(value) for name, value in run.metrics.items() if name[:2] != "lr"}  # fmt: skip


def values(run: WatchedRun) -> list[str]:
    """Return the last values, each with its name; the only learning rate is called ``lr``.

    The loss is not among them where `verdict` tells it.
    """
    is_told = run.state in {"finished", "stopped"} or diverges(run.losses)
    found = ({"loss": run.losses[-1][1]} if run.losses and not is_told else {}) | run.metrics
    if "lr/1" not in found:
        found = {"lr" if key == "lr/0" else key: value for key, value in found.items()}
    return [f"{key} {spelt(value)}" for key, value in found.items()]


def ended(run: WatchedRun) -> Iterator[str]:
    """Yield what a run that has ended leaves, and what to do next; nothing of one that trains."""
    state = run.state
    if state in {"ended", "stopped"} and (command := of_a_run(run.path)):
        yield f"next: {plain(command)}"
    if state not in {"finished", "stopped"}:
        return
    if isinstance(why := run.result.get("stopped_by"), str):
        yield f"stopped by its program: {why}"
    if isinstance(seconds := run.result.get("wall_s"), int | float):
        yield f"took {spell_seconds(seconds)} (last launch)"
    if isinstance(fingerprint := run.result.get("fingerprint"), str):
        yield f"fingerprint {fingerprint[:16]}..."
    shown = shlex.join(["unisono", "report", plain(str(run.path))])
    yield f"next: {shown}" if state == "finished" else f"its curves: {shown}"


def held_up(run: WatchedRun) -> Iterator[str]:
    """Yield what makes it slower than it could be: time outside of steps, a slow rank, or too few cores."""
    speed, slow = run.speed, run.slowest()
    if speed and speed.is_held_up:
        parts = sorted(run.outside().items(), key=lambda part: -part[1])
        named = ", ".join(f"{_OUTSIDE.get(phase, phase)} {share:.0%}" for phase, share in parts if share >= 0.01)
        yield f"{speed.spell_outside()}: {named}"
    if slow or run.sharing:
        yield slow.spell() if slow else run.sharing


def events(run: WatchedRun, most: int | None = None) -> Iterator[str]:
    """Yield what has disturbed the run, each with its time where that is known, the newest last.

    Args:
        run: The run.
        most: Only so many of them: deaths and damage go before launches, these before joins, and the newest first; the
            last line counts the others. None: all.
    """
    found: list[tuple[float, int, str]] = []  # when, how grave, what
    for number, world_size, first, before in run.launches[1:]:
        if first:
            again = f", {counted(before - first + 1, 'step')} computed again" if before >= first else ""
            told = f"launch {number}: {counted(world_size, 'worker')} from step {first}{again}"
            found.append((run.began_s[number], 1, told))
    for number in run.lost():
        if died := run.died_in(number):
            found.append((died[1], 2, f"rank {number} died in step {died[0]}"))
            continue
        rank = run.ranks[number]
        last = f"the last step it has written is {rank.step}" if rank.step else "it has written no step"
        found.append((max(rank.opened_s, rank.ended_s), 2, f"rank {number} is gone; {last}"))
    found += [
        (run.ranks[number].began_s, 0, f"rank {number} has joined in step {run.ranks[number].first}")
        for number in run.joined()
    ]
    lines = [(grave, f"{_clock(when)} {told}") for when, grave, told in sorted(found, key=lambda event: event[::2])]
    if damage := run.damage():
        lines.append((2, plain(damage)))
    lines += [
        (2, f"{plain(name)} has {counted(number, 'damaged line')}: left out here")
        for name, number in run.damaged.items()
    ]
    by_weight = sorted(range(len(lines)), key=lambda place: (lines[place][0], place), reverse=True)
    kept = sorted(by_weight[:most])
    more = f", and {counted(len(lines) - len(kept), 'more event')}" if len(kept) < len(lines) else ""
    yield from (lines[place][1] + more * (place == kept[-1]) for place in kept)


def room(run: WatchedRun) -> Iterator[str]:
    """Yield what the run leaves on the disk and takes of the memory."""
    facts = run.facts()
    if (step := facts["checkpoint_step"]) is not None:
        is_over = run.state in {"finished", "stopped"}
        ago = "" if is_over else f", {_whole(facts['checkpoint_age_s'])} ago"
        yield f"checkpoint: step {step:,}{ago}"
    yield f"{spell_bytes(facts['disk_free_bytes'])} of disk free"
    if used := facts["leader_memory_bytes"]:
        yield f"{spell_bytes(used)} in the leader"


def spelt(value: float) -> str:
    """Return a value with the digits that matter."""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"


def _whole(seconds: float) -> str:
    """Return a span of time in whole seconds: ``1 min 5 s``."""
    return spell_seconds(float(round(seconds)))


def _clock(when: float) -> str:
    """Return a time of day; with the date, where that is more than a day ago."""
    return time.strftime("%H:%M:%S" if time.time() - when < _A_DAY_S else "%Y-%m-%d %H:%M", time.localtime(when))
