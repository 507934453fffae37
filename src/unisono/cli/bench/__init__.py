"""``unisono bench``: measure scaling, collectives and strategies on this machine, or explain a collective."""

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unisono.cli.bench.links import links
from unisono.cli.bench.scaling import scaling
from unisono.cli.bench.strategies import strategies
from unisono.cli.bench.tune import tune
from unisono.cli.options.settings import PATH, number, to_json
from unisono.cli.outcome import nothing_kept, perform
from unisono.experiments.trials import check_picture
from unisono.launchers.scratch import scratch_directory
from unisono.options.quantities import RUNS, Count

if TYPE_CHECKING:
    from unisono.collectives.schedules import Schedule

COLLECTIVES = (
    "all_reduce", "reduce", "reduce_scatter", "broadcast", "scatter", "gather", "all_gather", "all_to_all", "send_recv",
    "tree_all_reduce", "barrier",
)  # fmt: skip
SIZES = "4KB,64KB,1MB,16MB"
MOST_BYTES = 1 << 30
EXPLAINED = Count(1, 256, "ranks")
_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_REFERENCE = {"tree_all_reduce": "all_reduce"}  # what torch.distributed has in its place


@click.group()
def bench() -> None:
    """Measure this machine.

    Exit code: 0 when everything was measured; see each command.
    """


bench.add_command(scaling)
bench.add_command(strategies)
bench.add_command(tune)
bench.add_command(links)


@bench.command(short_help="Time collectives over message sizes, or explain one.")
@click.option("-r", "--ranks", metavar="N,N,...", help="Numbers of processes.  [default: 2]")
@click.option("-s", "--sizes", metavar="SIZE,...", help=f"Sizes of the buffer, in powers of 1024.  [default: {SIZES}]")
@click.option(
    "-c", "--collectives", "only", metavar="NAME,...", help="Which ones, all_reduce,barrier say.  [default: all]"
)
@click.option("--repeat", type=number(RUNS), metavar="K", help="Repetitions of each.  [default: 15]")
@click.option("--explain", metavar="NAME", help="Measure nothing; show the moves of a schedule: ring, tree, ...")
@click.option("-n", "--explain-ranks", type=number(EXPLAINED), metavar="N", help="Ranks to explain.  [default: 4]")
@click.option("--picture", "--png", "picture", type=PATH, metavar="FILE.svg", help="Draw a picture too, as SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on standard output.")
def collectives(
    ranks: str | None,
    sizes: str | None,
    only: str | None,
    repeat: int | None,
    explain: str | None,
    explain_ranks: int | None,
    picture: str | None,
    as_json: bool,
) -> None:
    """Time collectives over shared memory and gloo, beside a plain copy of memory.

    All functions of torch.distributed, and tree_all_reduce, the sum of the exact step. What is compared is measured
    in one run, turn by turn, and every result is checked. The plan by which this host's reductions are cut is shown.

    --explain shows how a collective works instead: ring, naive-ring, tree, owner-computes, halving-doubling, or
    the patterns scatter, gather, reduce, all-reduce, broadcast, all-gather.

    Exit code: 0 when everything was measured and right; 1 for a wrong result; 2 for wrong settings; the code of the
    worker that failed first (128 + n for signal n); 130 after Ctrl-C.
    """

    def act() -> None:
        from unisono.errors import ConfigError

        check_picture(picture)
        if explain is not None:
            if ranks or sizes or only or repeat:
                raise ConfigError(
                    "--explain measures nothing: expected no --ranks, --sizes, --collectives or --repeat. "
                    "Hint: use -n N."
                )
            _explain(explain, explain_ranks or 4, picture, as_json)
            return
        if explain_ranks is not None:
            raise ConfigError("-n is for --explain. Hint: to measure, give the numbers of processes with --ranks 2,4.")
        _measure(
            parse_ranks(ranks or "2"), parse_sizes(sizes or SIZES), parse_names(only), repeat or 15, picture, as_json
        )

    sys.exit(perform("bench", act, nothing_kept("the measurement")))


def parse_sizes(text: str) -> list[int]:
    """Return sizes such as ``4KB,1MB`` in bytes, ascending, each once.

    Raises:
        ConfigError: Not a list of sizes, or one below 1 byte or above 1 GB.
    """
    from unisono.errors import ConfigError

    found = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,12})\s*([KMG]?B?)", part.strip(), re.IGNORECASE | re.ASCII)
        unit = match.group(2).upper() if match else ""
        size = int(match.group(1)) * _UNITS[unit if unit.endswith("B") or not unit else unit + "B"] if match else 0
        if not 1 <= size <= MOST_BYTES:
            raise ConfigError(f"expected --sizes such as 4KB,64KB,1MB, each from 1B to 1GB, got {part.strip()!r}.")
        found.add(size)
    return sorted(found)


def parse_ranks(text: str) -> list[int]:
    """Return numbers of ranks such as ``2,4``, in the given order, each once.

    Raises:
        ConfigError: Not a list of whole numbers from 2 to 64.
    """
    from unisono.errors import ConfigError

    found: dict[int, None] = {}
    for part in text.split(","):
        count = int(part) if re.fullmatch(r"\s*\d{1,4}\s*", part, re.ASCII) else 0
        if not 2 <= count <= 64:
            raise ConfigError(
                f"expected --ranks such as 2,4, each from 2 to 64, got {part.strip()!r}. "
                "Hint: a collective needs at least two ranks."
            )
        found[count] = None
    return list(found)


def parse_names(text: str | None) -> list[str]:
    """Return names of collectives such as ``all_reduce,barrier``, each once; none means all.

    Raises:
        ConfigError: A name that is not known.
    """
    from unisono.errors import ConfigError
    from unisono.system.hints import nearest

    found = dict.fromkeys(part.strip() for part in text.split(",")) if text is not None else {}
    for name in found:
        if name not in COLLECTIVES:
            hint = nearest(name, COLLECTIVES)
            raise ConfigError(f"expected --collectives of {', '.join(COLLECTIVES)}; got {name!r}.{hint}")
    return list(found)


def _measure(
    ranks: list[int], sizes: list[int], only: list[str], repeat: int, picture: str | None, as_json: bool
) -> None:
    from importlib import metadata

    from unisono.launchers.spec import usable_cores

    cores = usable_cores()
    rows: list[dict[str, Any]] = []
    plans: dict[int, dict[str, int] | None] = {}
    for count in ranks:
        busy = f" on {cores} cores, which must take turns" if count > cores else ""
        click.echo(f"measuring {count} ranks{busy} ...", err=True)
        told = _launch(count, sizes, only, repeat)
        rows += told["rows"]
        plans[count] = told["plan"]
    if picture is not None:
        from unisono.report.bench_section import timing_section
        from unisono.report.picture import draw_section

        draw_section(timing_section(rows), picture)
    if as_json:
        version = metadata.version("torch")
        click.echo(to_json({"cores": cores, "torch": version, "repeat": repeat, "plans": plans, "rows": rows}))
        return
    for line in [*table(rows), *(describe_plan(count, plan) for count, plan in plans.items())]:
        click.echo(line)


def describe_plan(ranks: int, plan: dict[str, int] | None) -> str:
    """Return in words how this host cuts reductions between so many ranks."""
    from unisono.system.words import spell_bytes

    if plan is None:
        return f"plan for {ranks} ranks: no shared memory here, everything over gloo"
    whole, piece = plan["whole_bytes"], spell_bytes(plan["piece_bytes"])
    if whole > MOST_BYTES:
        who = "every rank adds everything"
    else:
        who = f"everything up to {spell_bytes(whole)}, above it its share" if whole else "its share"
        who = f"each rank adds {who}"
    return f"plan for {ranks} ranks: {who}; pieces of {piece}"


def _launch(ranks: int, sizes: list[int], only: list[str], repeat: int) -> dict[str, Any]:
    from unisono.experiments.measure import measure
    from unisono.launchers.api import describe_function
    from unisono.launchers.local import run_local
    from unisono.launchers.spec import LaunchSpec

    with scratch_directory("bench") as scratch:
        out = Path(scratch) / "rows.json"
        target = describe_function(measure, (sizes, repeat, only, str(out)))
        run_local(LaunchSpec(target=target, workers=ranks, threads=1, output="stderr"))
        told: dict[str, Any] = json.loads(out.read_text())
        return told


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the rows as lines of at most 80 columns, grouped by ranks, collective and size.

    The last column says how many times faster a row is than torch.distributed's collective over gloo.
    """
    from unisono.system.words import spell_bytes, spell_seconds

    lines = [
        f"{'ranks':>5} {'collective':<15} {'buffer':>7} {'over':<6} {'median':>8} {'quartiles':>19} "
        f"{'MB/s':>6}  {'ratio':>6}"
    ]
    groups: dict[tuple[int, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["ranks"], row["collective"], row["bytes"]), []).append(row)
    order = list(dict.fromkeys(row["collective"] for row in rows))
    for ranks, collective, size in sorted(groups, key=lambda key: (key[0], order.index(key[1]), key[2])):
        found = {row["transport"]: row for row in groups[ranks, collective, size]}
        base = groups.get((ranks, _REFERENCE.get(collective, collective), size), [])
        base_s = next((row["median_s"] for row in base if row["transport"] == "gloo"), None)
        for transport, row in found.items():
            quartiles = f"{spell_seconds(row['q1_s']):>8} - {spell_seconds(row['q3_s']):>8}"
            rate = "" if row["bytes_per_s"] is None else _short(row["bytes_per_s"] / 1e6)
            ratio = "" if base_s is None else _short(base_s / row["median_s"]) + "x"
            buffer = spell_bytes(size) if size else ""
            line = f"{ranks:>5} {collective:<15} {buffer:>7} {transport:<6} {spell_seconds(row['median_s']):>8} "
            lines.append(f"{line}{quartiles} {rate:>6}  {ratio:>6}".rstrip())
    lines.append("")
    lines.append("ratio: times faster than over gloo (tree_all_reduce: than gloo's all_reduce)")
    return lines


def _short(number: float) -> str:
    """Return a number in at most six characters."""
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _explain(name: str, ranks: int, picture: str | None, as_json: bool) -> None:
    from unisono.collectives.schedules import plan

    schedule = plan(name, ranks)
    if picture is not None:
        from unisono.report.schedule_picture import draw_schedule

        draw_schedule(schedule, f"{name}: {ranks} ranks" if ranks > 1 else f"{name}: 1 rank", picture)
    if as_json:
        click.echo(to_json(as_plain(schedule)))
        return
    for line in words(schedule):
        click.echo(line)


def as_plain(schedule: "Schedule") -> dict[str, Any]:
    """Return a schedule as plain values; ``sent`` is in chunks, for each rank."""
    from unisono.collectives.schedules import bytes_sent

    return {
        "name": schedule.name,
        "ranks": schedule.world_size,
        "chunks": schedule.num_chunks,
        "holds": [list(held) for held in schedule.holds],
        "rounds": [
            [{"source": m.source, "target": m.target, "chunk": m.chunk, "action": m.action} for m in moves]
            for moves in schedule.rounds
        ],
        "sent": bytes_sent(schedule, schedule.num_chunks),
    }


def words(schedule: "Schedule") -> list[str]:
    """Return a schedule in words: what it is, its moves round by round, and what each rank sends."""
    import inspect
    import textwrap

    from unisono.collectives.schedules import SCHEDULES, bytes_sent

    text = (inspect.getdoc(SCHEDULES[schedule.name]) or "").removeprefix("Return ")
    text = re.sub("[`*]{1,2}(?=\\S)|(?<=\\S)[`*]{1,2}", "", text[:1].upper() + text[1:])
    lines = [line for paragraph in text.split("\n\n") for line in [*textwrap.wrap(paragraph, 80), ""]]
    for turn, moves in enumerate(schedule.rounds, start=1):
        lines.append(f"round {turn}")
        for source in sorted({move.source for move in moves}):
            sent = [f"{m.action} chunk {m.chunk} to rank {m.target}" for m in moves if m.source == source]
            line = f"rank {source}: {', '.join(sent)}"
            lines += textwrap.wrap(line, 78, initial_indent="  ", subsequent_indent="    ")
    sent_by = [f"{count / schedule.num_chunks:.3g} S" for count in bytes_sent(schedule, schedule.num_chunks)]
    lines += textwrap.wrap(f"each rank sends, of a buffer of S bytes: {', '.join(sent_by)}", 80)
    return lines
