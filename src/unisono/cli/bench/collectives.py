"""``unisono bench collectives``: time them on this machine, or explain one."""

from typing import Any

import click

from unisono.cli.options.fields import picture_option, result_options, single
from unisono.cli.options.lists import MOST_BYTES, parse_names, parse_ranks, parse_sizes
from unisono.cli.output.outcome import nothing_kept, tell, verb
from unisono.cli.output.tables import answer, table
from unisono.errors import ConfigError
from unisono.options.quantities import RUNS, Count
from unisono.system.words import counted, spell_bytes, spell_seconds

EXPLAINED = Count(1, 256, "ranks")
_REFERENCE = {"tree_all_reduce": "all_reduce"}  # what torch.distributed has in its place


@click.command(short_help="Time collectives over message sizes, or explain one.")
@single(
    "workers", "Numbers of processes; with --explain, the ranks to show.", short="-n", word="N,N,...",
    usual="2; with --explain, 4", old=("--ranks", "--explain-ranks"),
)  # fmt: skip
@single("sizes", "Sizes of the buffer, in powers of 1024.", short="-s", word="SIZE,...", usual="4KB,64KB,1MB,16MB")
@single("collectives", "Which ones, all_reduce,barrier say.", short="-c", word="NAME,...", usual="all")
@single("repeat", "Repetitions of each.", of=RUNS, usual="15", short="-r", word="R")
@single("explain", "Measure nothing; show the moves of a schedule: ring, tree, ...")
@picture_option
@result_options
@verb("bench collectives", nothing_kept("the measurement"))
def collectives(explain: str | None, workers: str | None, picture: str | None, as_json: bool, **given: Any) -> None:
    """Time collectives over shared memory and gloo, beside a plain copy of memory.

    All functions of torch.distributed, and tree_all_reduce, the sum of the exact step. What is compared is measured
    in one run, turn by turn, and every result is checked. The plan by which this host's reductions are cut is shown.

    --explain shows how a collective works instead: ring, naive-ring, tree, owner-computes, halving-doubling, or
    the patterns scatter, gather, reduce, all-reduce, broadcast, all-gather.

    Exit code: 0 when everything was measured and right; 1 for a wrong result; 2 for wrong settings; the code of the
    worker that failed first (128 + n for signal n); 130 after Ctrl-C.
    """
    from unisono.experiments.collectives import COLLECTIVES, SIZES, measure_collectives
    from unisono.experiments.trials import check_picture

    check_picture(picture)
    if explain is not None:
        _refuse(given)
        _explain(explain, EXPLAINED.read("--workers", workers or "4"), picture, as_json)
        return
    names = parse_names("--collectives", given["collectives"] or ",".join(COLLECTIVES), COLLECTIVES)
    sizes = parse_sizes(given["sizes"]) if given["sizes"] else SIZES
    repeat = given["repeat"] or 15
    found = measure_collectives(parse_ranks(workers or "2"), sizes, names, repeat=repeat, tell=tell)
    if picture is not None:
        from unisono.report.bench_section import timing_section
        from unisono.report.picture import draw_section

        draw_section(timing_section(found["rows"]), picture)
    plans = [describe_plan(count, plan) for count, plan in found["plans"].items()]
    answer(found, as_json, lambda: [*timings_table(found["rows"]), *plans])


def _refuse(given: dict[str, Any]) -> None:
    if any(given.values()):
        raise ConfigError("--explain measures nothing: expected no --sizes, --collectives or --repeat.")


def describe_plan(ranks: int, plan: dict[str, int] | None) -> str:
    """Return in words how this host cuts reductions between so many ranks."""
    if plan is None:
        return f"plan for {ranks} ranks: no shared memory here, everything over gloo"
    whole, piece = plan["whole_bytes"], spell_bytes(plan["piece_bytes"])
    if whole > MOST_BYTES:
        who = "every rank adds everything"
    else:
        who = f"everything up to {spell_bytes(whole)}, above it its share" if whole else "its share"
        who = f"each rank adds {who}"
    return f"plan for {ranks} ranks: {who}; pieces of {piece}"


def timings_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the rows as lines of at most 80 columns, grouped by ranks, collective and size.

    The last column says how many times faster a row is than torch.distributed's collective over gloo.
    """
    order = list(dict.fromkeys(row["collective"] for row in rows))
    gloo = {
        (row["ranks"], row["collective"], row["bytes"]): row["median_s"] for row in rows if row["transport"] == "gloo"
    }
    cells = []
    for row in sorted(rows, key=lambda row: (row["ranks"], order.index(row["collective"]), row["bytes"])):
        ranks, name, size = row["ranks"], row["collective"], row["bytes"]
        base_s = gloo.get((ranks, _REFERENCE.get(name, name), size))
        times = [spell_seconds(row[key]) for key in ("median_s", "q1_s", "q3_s")]
        rate = None if row["bytes_per_s"] is None else _short(row["bytes_per_s"] / 1e6)
        ratio = None if base_s is None else f"{_short(base_s / row['median_s'])}x"
        cells.append((ranks, name, spell_bytes(size) if size else None, row["transport"], *times, rate, ratio))
    head = ("ranks", "collective", "buffer", "over", "median", "quarter", "3/4", "MB/s", "ratio")
    return [
        *table(head, cells, left=("collective", "over")),
        "",
        "ratio: times faster than over gloo (tree_all_reduce: than gloo's all_reduce)",
        "quarter, 3/4: so many of the repetitions took no longer",
    ]


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _explain(name: str, ranks: int, picture: str | None, as_json: bool) -> None:
    from unisono.collectives.schedules import plan
    from unisono.experiments.collectives import describe_schedule, schedule_as_plain

    schedule = plan(name, ranks)
    if picture is not None:
        from unisono.report.schedule_picture import draw_schedule

        title = f"{name}: {counted(ranks, 'rank')}, {counted(len(schedule.rounds), 'round')}"
        draw_schedule(schedule, title, picture)
    answer(schedule_as_plain(schedule), as_json, lambda: describe_schedule(schedule))
