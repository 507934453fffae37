"""The sections of runs on a page: curves, where the time went, who was slow, what was interrupted, and comparison."""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from unisono.launchers.program_files import of_a_run
from unisono.observe.speed import slow_rank, speed_in, spell_sharing
from unisono.report.charts import Series
from unisono.report.content import (
    Chart,
    Remark,
    Section,
    Table,
    band_of,
    diverges,
    flat,
    from_to,
    line_view,
    log_ends,
    loss_label,
    mean_of,
    range_of,
    rates_of,
    room_of,
    sample,
)
from unisono.report.rank_section import checkpoints, phases_by_rank, stragglers, timeline
from unisono.report.run_view import RunView, by_rank, how_it_ended, newest_checkpoint, resumed_after, strategy_in
from unisono.system.words import counted, spell_bytes, spell_count, spell_seconds

MOST_METRICS = 6
_RAW = ": every value is in its ledger.jsonl, metrics.jsonl and phases/."
OVER = {"finished", "stopped"}
"""States in which a result is that of all steps."""


def run_section(run: RunView, num_runs: int) -> Section:
    """Return everything about one run."""
    curves = [*_curves(run, num_runs)]
    charts = [*charts_of(curves), *phases_by_rank(run), *timeline(run)]
    folded = [
        _overview(run),
        *stragglers(run),
        Table(title="Score", head=["setting", "value"], rows=flat(run.score), mono=frozenset({1})),
        Table(title="Environment", head=["entry", "value"], rows=flat(run.environment), mono=frozenset({1})),
    ]
    folded += checkpoints(run)
    return Section(
        title=f"Run {run.name}", lines=[_what(run), f"{run.path}{_RAW * bool(run.ledger)}"],
        findings=[*_findings(run), *remarks_of(curves)],
        charts=charts, folded=[table for table in folded if table.rows],
    )  # fmt: skip


def _what(run: RunView) -> str:
    """Return in one line what was run, on how many workers, and how long."""
    if not run.score:
        return "It is not known what was to be trained: settings are written when the loop over steps begins."
    batch, seconds = run.score.get("batch_size", "?"), told_seconds(trained_s(run.result))
    told = f"{strategy_of(run)}, {run.score.get('replicas', '?')} replicas, batches of {batch}"
    told += f", {counted(run.result['epochs'], 'epoch')}" if run.result.get("epochs") else ""
    told += f", {run.worlds()} workers{run.changes()}" if run.worlds() != "1" else ", 1 worker"
    speed = speed_in(run.result)
    told += f", {seconds} of training" if seconds else ""
    totals = run.result.get("totals")
    where = " in the last launch" if isinstance(totals, dict) and totals.get("launches", 1) > 1 else ""
    return f"{told}, mean {speed.spell()}{where}." if speed else f"{told}."


def _overview(run: RunView) -> Table:
    result, unfinished = run.result, "not finished"
    rows = [
        ["fingerprint", str(result.get("fingerprint", unfinished)) if run.state in OVER else unfinished],
        ["strategy", strategy_of(run)],
        ["workers", run.worlds() + run.changes()],
        ["replicas", str(run.score.get("replicas", "?"))],
        ["batch size", str(run.score.get("batch_size", "?"))],
        ["steps", spell_count(len(run.ledger))],
        ["samples a second by the clock", told_number(result.get("samples_per_s"))],
        ["samples a second within steps", told_number(result.get("samples_per_s_within"))],
        ["wall time of the last launch", told_seconds(result.get("wall_s"))],
    ]
    totals = result.get("totals")
    if isinstance(totals, dict) and totals.get("launches", 1) != 1:
        told = f"{told_number(totals.get('launches'))}, {told_seconds(totals.get('train_s'))} of training"
        rows.append(["launches", f"{told} for {told_number(totals.get('samples'))} samples"])
    rows += [[name, told_number(value)] for name, value in result.get("metrics", {}).items()]
    for key, name, spell in (
        ("peak_memory_bytes", "peak memory, fullest rank", spell_bytes),
        ("bytes_sent_per_step", "sent a step, all ranks", spell_bytes),
    ):
        if result.get(key):
            rows.append([name, spell(max(result[key]) if "peak" in key else sum(result[key]))])
    return Table(
        title="In short: settings, speed, memory, bytes sent", head=["what", "value"], rows=rows, mono=frozenset({1})
    )


def _findings(run: RunView) -> Iterator[Remark]:
    yield from _ending(run)
    if diverges(run.losses):
        yield Remark(text=f"The loss diverges. {from_to(run.losses)}", tone="alarm")
    if run.changed:
        yield Remark(text=f"{run.changed}. What is shown of the steps before it may not be this run's.", tone="alarm")
    if run.damage:
        yield Remark(text=run.damage, tone="alarm")
    yield from _interruptions(run)
    if run.environment.get("drifted"):
        yield Remark(text="The environment has changed during the run; see Environment.", tone="alarm")
    speed = speed_in(run.result)
    if speed and speed.is_held_up:
        yield Remark(
            text=f"{speed.spell_outside()}: evaluations, checkpoints, or the program's own code between steps."
        )
    if not run.phases:
        yield Remark(text="No step phases were recorded: nothing is known of where the time went.")
        return
    yield from _slow(run)
    parts = by_rank(run.last_world())
    if parts:
        mean = {phase: statistics.fmean(rank[phase] for rank in parts.values()) for phase in next(iter(parts.values()))}
        whole = sum(mean.values())
        top = sorted(mean.items(), key=lambda part: -part[1])[:3]
        told = ", ".join(f"{seconds / whole:.0%} {phase}" for phase, seconds in top) if whole else "nothing"
        yield Remark(text=f"The median step takes {spell_seconds(whole)}: {told}.")


def _slow(run: RunView) -> Iterator[Remark]:
    """Yield which rank is slow; where workers share cores that they do, since it is not the rank then."""
    steps: dict[int, list[tuple[dict[str, float], int]]] = {}
    # Of the ranks that were there last, and of steps that all of them have done: others were done at other times.
    worlds = [(records, {record.rank for record in records}) for records in run.last_world()]
    for record in itertools.chain(*(records for records, ranks in worlds if ranks == worlds[-1][1])):
        seconds = {phase: ns / 1e9 for phase, ns in record.ns.items()}
        steps.setdefault(record.rank, []).append((seconds, record.replicas))
    of_the_last = (record for record in run.phases if record.launch == run.launches[-1].number)
    sharing = next(filter(None, (spell_sharing(record.local_workers, record.cores) for record in of_the_last)), "")
    if sharing:
        yield Remark(text=f"{sharing}, so no rank is called slow.")
    elif slow := slow_rank(steps):
        told = slow.spell()
        yield Remark(text=f"{told[0].upper()}{told[1:]}. The other ranks wait for it: see Stragglers.", tone="alarm")


def _ending(run: RunView) -> Iterator[Remark]:
    """Yield how it ended, with its scores and fingerprint; of one that has not, who trains it and what to do."""
    result, command, state = run.result, of_a_run(run.path), run.state
    again = f" ({command})" if command else ""
    last = spell_count(run.ledger[-1]["step"] if run.ledger else 0)
    if state in {"training", "starting"}:
        newest = run.launches[-1] if run.launches else None
        after = resumed_after(run.path, newest.number if newest else 0, newest.first_step if newest else 0)
        told = f", resumed after step {spell_count(after)}" if after else ""
        yield Remark(text=f"The run is training{told}: step {last} was the last when this page was written.")
    elif state == "stopped":
        yield Remark(
            text=f"The run was stopped after step {result.get('steps')}, and saved: the same command goes on{again}.",
            tone="alarm",
        )
    elif state != "finished":
        saved = newest_checkpoint(run.path)
        goes_on = f"goes on after step {saved}{again}" if saved else f"starts from the beginning{again}: no checkpoint"
        told = "The run has not ended, and nothing on this machine trains it"
        if state == "ended":
            told = how_it_ended(run.path, run.ledger[-1]["step"] if run.ledger else 0)
        told = f"{told[0].upper()}{told[1:]}." + f" Its last step is {last}." * bool(run.ledger)
        yield Remark(text=f"{told} The same command {goes_on}.", tone="alarm")
    else:
        why = f": its program stopped it, {result['stopped_by']}" if "stopped_by" in result else ""
        metrics = ", ".join(f"{name} {told_number(value)}" for name, value in result.get("metrics", {}).items())
        told = f"Finished after {counted(result.get('steps', 0), 'step')}{why}{f', with {metrics}' * bool(metrics)}."
        yield Remark(text=told, tone="good")
        if "fingerprint" in result:
            yield Remark(text=f"Fingerprint of the final weights: {result['fingerprint']}")


def _interruptions(run: RunView) -> Iterator[Remark]:
    for before, after in zip(run.launches, run.launches[1:], strict=False):
        known = after.reached or max(before.last_step, after.first_step - 1)  # a killed rank's last second is missing
        again = known - after.first_step + 1
        redone = f", {counted(again, 'step')} done again" if again > 0 else ""
        world = "" if before.world_size == after.world_size else f", on {counted(after.world_size, 'worker')}"
        yield Remark(
            text=f"Interrupted after step {known}; launch {after.number} went on from step "
            f"{after.first_step} after {spell_seconds(max(0.0, after.began_s - before.ended_s))}{redone}{world}.",
            tone="alarm",
        )


def _curves(run: RunView, num_runs: int) -> Iterator[Chart | Remark]:
    metrics, room = run.metrics(), room_of(num_runs)
    tested = metrics.pop("test_loss", [])
    metrics.pop("train/loss", None)  # the ledger has it for every step
    losses = [*_lines("loss of the step's batch", run.losses, room), *_lines("test_loss", tested, room, 1)]
    known = run.losses + tested
    yield from curves_of("Loss", losses, finding=from_to(run.losses), log_y=log_ends(known), y_label=loss_label(known))
    for name, points in list(metrics.items())[:MOST_METRICS]:
        yield from curves_of(name, _lines(name, points, room), from_zero=False, finding=range_of(points), y_label=name)
    speed = run.throughput()
    means, width = rates_of(speed)
    lines = [Series(name=f"mean of {width} steps" if width > 1 else "each step", points=sample(means, room))]
    lines += [band_of("each step", speed, room, 0, left_out=0.1)] if width > 1 else []
    values = sorted(value for _, value in speed) or [0.0]
    finding = f"{spell_count(round(statistics.median(values)))} samples a second in the median step"
    slow = (
        f", {spell_count(round(values[len(values) // 10]))} or less in the slowest tenth" if len(values) >= 10 else ""
    )
    finding += f"{slow}."
    yield from curves_of("Throughput", lines, finding=finding, y_label="samples a second, within steps")


def _lines(name: str, points: Sequence[tuple[float, float]], room: int, colour: int = 0) -> list[Series]:
    """Return a line of all values; of many a smooth one, and pale what it is the mean of."""
    smoothed, width = mean_of(points)
    if width == 1 or (colour and len(points) <= room):
        return [Series(name=name, points=sample(points, room), colour=colour)]
    of = f"{name}, " if colour else ""
    line = Series(name=f"{of}mean of {width} steps", points=sample(smoothed, room), colour=colour)
    return [line, band_of("each step", points, room, colour)]


def curves_of(title: str, series: Sequence[Series], from_zero: bool = True, **how: Any) -> Iterator[Chart | Remark]:
    """Yield a chart of lines; of a single step the values in words; nothing of none."""
    found = [line for line in series if line.points]
    steps = {x for line in found for x, _ in line.points}
    if len(steps) > 1:
        yield line_view(title, found, "step", spell_count, told_value, from_zero=from_zero, **how)
    elif found:
        several = [line for line in found if not line.is_pale]
        told = [f"{line.name} " * (len(several) > 1) + told_value(line.points[0][1]) for line in several]
        where = f"in step {spell_count(*steps)}; no other step has a value, so there is no curve"
        yield Remark(text=f"{title}: {', '.join(told)}, {where}.")


def charts_of(found: Sequence[Chart | Remark]) -> list[Chart]:
    """Return the charts among what was yielded."""
    return [one for one in found if isinstance(one, Chart)]


def remarks_of(found: Sequence[Chart | Remark]) -> list[Remark]:
    """Return the sentences among what was yielded."""
    return [one for one in found if isinstance(one, Remark)]


def told_value(value: float) -> str:
    """Return a value of a curve in words."""
    return spell_count(value) if abs(value) < 1e7 else f"{value:.3g}"


def trained_s(result: dict[str, Any]) -> Any:
    """Return the seconds of all launches, or where a run had one, of that."""
    totals = result.get("totals")
    if isinstance(totals, dict) and totals.get("launches", 1) != 1:
        return totals.get("train_s")
    return result.get("wall_s")


def strategy_of(run: RunView) -> str:
    """Return the name of a run's strategy; ``?`` where it is not known."""
    return str(run.result.get("strategy", strategy_in(run.score)))


def told_number(value: Any) -> str:
    """Return a number, or what stands in its place, in words; nothing of None."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return spell_count(value)
    return "" if value is None else str(value)


def told_seconds(value: Any) -> str:
    """Return a span of time in words; nothing of what is no number."""
    return spell_seconds(value) if isinstance(value, int | float) else ""
