"""``unisono forecast``: what training would take on more ranks than there are."""

import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unisono.cli.completion import complete_recipe
from unisono.cli.options.settings import PATH, number, to_json
from unisono.cli.outcome import nothing_kept, perform
from unisono.experiments.trials import check_picture
from unisono.options.quantities import (
    BATCH,
    ELEMENT_BYTES,
    FRACTION,
    JITTER,
    PARAMETERS,
    RANKS,
    RATE,
    REPLICAS,
    STEPS,
)

if TYPE_CHECKING:
    from unisono.scaling.failures import Reliability
    from unisono.scaling.forecast import Workload
    from unisono.scaling.machine import Machine

KIND, VERSION = "unisono forecast", 1


@click.command(short_help="Forecast steps, efficiency and the best algorithm on 1 to 65,536 ranks.")
@click.argument("recipe", metavar="[RECIPE]", required=False, shell_complete=complete_recipe)
@click.option("--ranks", metavar="N,N|A..B",
              help="Numbers of ranks; A..B: powers of two.  [default: 1..1024; of a RECIPE here, 1..8]")  # fmt: skip
@click.option(
    "--parameters", type=number(PARAMETERS), metavar="P", help="Of the model; 4 bytes each unless --parameter-bytes."
)
@click.option(
    "--parameter-bytes",
    type=number(ELEMENT_BYTES),
    default=4,
    show_default=True,
    metavar="B",
    help="Of a gradient's element.",
)
@click.option("--sample-time", metavar="TIME", help="Forward and backward of a sample on one rank: 12ms.")
@click.option(
    "--batch-size", type=number(BATCH), metavar="B", help="Samples per step over all ranks; with --weak, of each rank."
)
@click.option(
    "--replicas", type=number(REPLICAS), metavar="V", help="Micro-batches of a step.  [default: one for each rank]"
)
@click.option("--update-time", metavar="TIME", help="Optimizer.  [default: 0]")
@click.option(
    "--jitter", type=number(JITTER), metavar="X", help="Spread of a rank's compute time over its mean.  [default: 0]"
)
@click.option("--overlap", type=number(FRACTION), metavar="X",
              help="Part of the backward pass beside which communication goes on.  [default: 0]")  # fmt: skip
@click.option("--data-rate", type=number(RATE), metavar="X", help="Samples a second that storage gives to all ranks.")
@click.option("--servers", type=number(RANKS), metavar="K", help="Parameter servers.  [default: 1]")
@click.option(
    "--steps", type=number(STEPS), metavar="K", help="Steps of the whole run: adds its time, launch and failures."
)
@click.option("--launch-time", metavar="TIME", help="Until the first step.  [default: 0]")
@click.option("--launch-rank-time", metavar="TIME", help="More of it for each rank.  [default: 0]")
@click.option("--weak", is_flag=True, help="The batch grows with the ranks.")
@click.option("--node-size", type=number(RANKS), metavar="L", help="Ranks of a node.  [default: 8]")
@click.option("--nics", type=number(RANKS), metavar="K", help="Network cards of a node.  [default: one for each rank]")
@click.option("--inside", metavar="RATE", help="Of a rank inside its node.  [default: 450GB/s]")
@click.option("--inside-latency", metavar="TIME", help="[default: 3us]")
@click.option(
    "--between", metavar="RATE", help="Of a network card: 400Gb/s (bits) or 50GB/s (bytes).  [default: 400Gb/s]"
)
@click.option("--between-latency", metavar="TIME", help="[default: 5us]")
@click.option("--overhead", metavar="TIME", help="Of a port for each message.  [default: 1us]")
@click.option("--add-rate", metavar="RATE", help="Gradients added on a rank.  [default: 1000GB/s]")
@click.option("--mtbf", metavar="TIME", help="Mean time between failures of one rank: 50000h.")
@click.option("--checkpoint-time", metavar="TIME", help="Training time that a checkpoint costs.  [default: 10s]")
@click.option("--restart-time", metavar="TIME", help="From a failure to the next step.  [default: 60s]")
@click.option("--data", type=PATH, metavar="PATH", help="RECIPE's data.")
@click.option("--picture", "--png", "picture", type=PATH, metavar="FILE.svg", help="Draw a picture too, as SVG.")
@click.option("-o", "--out", type=PATH, metavar="FILE", help="Keep the forecast, for unisono report.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on standard output.")
def forecast(
    recipe: str | None, ranks: str | None, picture: str | None, out: str | None, as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Forecast step time, efficiency and the best algorithm, from a cost model of machine and job.

    With RECIPE the model is calibrated by a short measurement on this machine (about half a minute); what is given
    on the command line takes its place. Without, machine and job come from the command line:

      unisono forecast --parameters 7e9 --parameter-bytes 2 --sample-time 0.9s
        --batch-size 1024 --node-size 8 --between 400Gb/s --mtbf 50000h

    Ring, tree, owner-computes, halving-doubling, hierarchical, parameter servers that wait or do not. docs/scaling.md
    says what the model knows, and what it does not.

    Exit code: 0 when it was forecast; 2 for wrong settings; with RECIPE, the code of a worker that failed.
    """

    def act() -> None:
        check_picture(picture)
        is_here = recipe is not None and given["node_size"] is None
        counts = parse_counts(("1..8" if is_here else "1..1024") if ranks is None else ranks)
        if out is not None:
            from unisono.system.files import check_place

            check_place(Path(out), (KIND,))
        job, machine, notes = settle(recipe, given)
        told = tell(job, machine, reliability_of(given), counts, notes)
        show(told, picture=picture, out=out, as_json=as_json)

    sys.exit(perform("forecast", act, nothing_kept("the measurement")))


def parse_counts(text: str) -> list[int]:
    """Return numbers of ranks from ``1,3,8`` or ``1..1024``, ascending, each once.

    Raises:
        ConfigError: Not such a list, or a number out of range.
    """
    from unisono.errors import ConfigError
    from unisono.scaling.forecast import MOST_RANKS

    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:\.\.(\d{1,6}))?\s*", part, re.ASCII)
        low, high = (int(match.group(1)), int(match.group(2) or match.group(1))) if match else (0, 0)
        if not 1 <= low <= high <= MOST_RANKS:
            raise ConfigError(f"expected --ranks such as 1,2,8 or 1..1024, each from 1 to {MOST_RANKS}, got {part!r}.")
        found |= {low, high, *(1 << power for power in range(17) if low <= 1 << power <= high)}
    return sorted(found)


def settle(recipe: str | None, given: dict[str, Any]) -> "tuple[Workload, Machine, list[str]]":
    """Return job and machine from measurement and command line, and notes on where they come from.

    Raises:
        ConfigError: Something is missing or out of range.
    """
    from dataclasses import replace

    from unisono.errors import ConfigError
    from unisono.scaling.forecast import Workload
    from unisono.scaling.machine import Link, Machine, parse_rate, parse_seconds

    notes: list[str] = []
    if recipe is None:
        missing = [f"--{name.replace('_', '-')}" for name in ("parameters", "sample_time", "batch_size")
                   if given[name] is None]  # fmt: skip
        if missing:
            raise ConfigError(
                f"expected a RECIPE to measure, or {', '.join(missing)}. Hint: unisono forecast digits; or give "
                "--parameters 7e9 --sample-time 0.9s --batch-size 1024."
            )
        size = given["node_size"] if given["node_size"] is not None else 8
        machine = Machine(
            inside=Link(latency_s=3e-6, s_per_byte=1 / 450e9, overhead_s=1e-6),
            between=Link(latency_s=5e-6, s_per_byte=1 / 50e9, overhead_s=1e-6),
            node_size=size, nics=max(1, size), add_s_per_byte=1e-12,
        )  # fmt: skip
        job = Workload(gradient_bytes=0.0, batch_size=given["batch_size"], sample_s=parse_seconds(given["sample_time"]))
        notes.append("from the command line; what was not given has its default")
    else:
        from unisono.experiments.calibrate import calibrate

        job, machine, notes = calibrate(recipe, given)
    links = {}
    for name in ("inside", "between"):
        link: Link = getattr(machine, name)
        rate, latency = given[name], given[f"{name}_latency"]
        links[name] = replace(
            link,
            s_per_byte=link.s_per_byte if rate is None else 1 / parse_rate(rate),
            latency_s=link.latency_s if latency is None else parse_seconds(latency),
            overhead_s=link.overhead_s if given["overhead"] is None else parse_seconds(given["overhead"]),
        )
    plain = {name: given[name] for name in ("node_size", "nics") if given[name] is not None}
    if given["add_rate"] is not None:
        plain["add_s_per_byte"] = 1 / parse_rate(given["add_rate"])
    if recipe is not None and given["node_size"] is not None and machine.cores is not None:
        plain["cores"] = None  # another machine: its ranks have devices of their own
    machine = replace(machine, inside=links["inside"], between=links["between"], **plain)
    numbers = {name: given[name] for name in ("replicas", "jitter", "overlap", "servers", "steps", "batch_size")}
    numbers["data_samples_per_s"] = given["data_rate"]
    for name, option in (("update_s", "update_time"), ("launch_s", "launch_time"),
                         ("launch_rank_s", "launch_rank_time"), ("sample_s", "sample_time")):  # fmt: skip
        numbers[name] = None if given[option] is None else parse_seconds(given[option])
    if given["parameters"] is not None:
        numbers["gradient_bytes"] = given["parameters"] * given["parameter_bytes"]
    chosen = {name: value for name, value in numbers.items() if value is not None}
    return replace(job, **chosen, weak=given["weak"]), machine, notes


def reliability_of(given: dict[str, Any]) -> "Reliability | None":
    """Return what is known of failures, None without ``--mtbf``.

    Raises:
        ConfigError: A time is out of range, or one is given without ``--mtbf``.
    """
    from unisono.errors import ConfigError
    from unisono.scaling.failures import Reliability
    from unisono.scaling.machine import parse_seconds

    saving, restart = given["checkpoint_time"], given["restart_time"]
    if given["mtbf"] is None:
        if saving is not None or restart is not None:
            raise ConfigError("--checkpoint-time and --restart-time are for failures. Hint: give --mtbf too.")
        return None
    return Reliability(
        rank_mtbf_s=parse_seconds(given["mtbf"]),
        checkpoint_s=parse_seconds(saving or "10s"),
        restart_s=parse_seconds(restart or "60s"),
    )


def tell(
    job: "Workload", machine: "Machine", reliability: "Reliability | None", counts: list[int], notes: list[str]
) -> dict[str, Any]:  # fmt: skip
    """Return the forecast as plain values, as it is kept."""
    from dataclasses import asdict

    from unisono.scaling.forecast import forecast as predict_all

    found = predict_all(job, machine, counts, reliability)
    rows = [asdict(one) for one in found]
    for row in rows:
        if row["run_s"] == math.inf:  # which JSON does not have
            row["run_s"] = "never"
    return {
        "kind": KIND, "version": VERSION, "notes": notes, "job": asdict(job), "machine": asdict(machine),
        "reliability": None if reliability is None else asdict(reliability),
        "forecasts": rows, "simulated": [],  # which readers of this version look for
    }  # fmt: skip


def show(told: dict[str, Any], *, picture: str | None, out: str | None, as_json: bool) -> None:
    """Draw, keep and print a forecast."""
    text = to_json(told)
    if picture is not None:
        from unisono.report.forecast_section import forecast_section
        from unisono.report.picture import draw_section

        draw_section(forecast_section(told), picture)
    if out is not None:
        from unisono.system.files import write_whole

        write_whole(Path(out), (text + "\n").encode())
    if as_json:
        click.echo(text)
        return
    for line in table(told):
        click.echo(line)


def run_text(run_s: float | str) -> str:
    """Return a run's time in words; it may never end."""
    from unisono.system.words import spell_seconds

    return run_s if isinstance(run_s, str) else spell_seconds(run_s)


def table(told: dict[str, Any]) -> list[str]:
    """Return a forecast as lines of at most 100 columns."""
    from unisono.system.words import spell_bytes, spell_seconds

    lines = [f"{note}" for note in told["notes"]]
    head = f"{'ranks':>6}  {'best':<17} {'step':>8} {'speed-up':>9} {'effic.':>6}  {'limit':<13}"
    has_losses, has_run = told["reliability"] is not None, told["job"]["steps"] is not None
    head += f" {'save every':>10} {'useful':>6}" if has_losses else ""
    lines.append(head + (f" {'run':>9}" if has_run else ""))
    for row in told["forecasts"]:
        best = next(one for one in row["predictions"] if one["strategy"] == row["best"])
        line = (
            f"{row['ranks']:>6}  {row['best']:<17} {spell_seconds(best['step_s']):>8} {best['speedup']:>9,.4g} "
            f"{best['efficiency']:>6.1%}  {best['limit']:<13}"
        )
        if has_losses:
            line += f" {spell_seconds(row['losses']['interval_s']):>10} {row['losses']['useful']:>6.1%}"
        line += f" {run_text(row['run_s']):>9}" if has_run else ""
        lines.append(line + (f"  {row['idle']} idle" if row["idle"] else ""))
    last = told["forecasts"][-1]
    lines += [
        "",
        f"on {last['ranks']} ranks:",
        f"  {'strategy':<17} {'step':>8} {'efficiency':>10} {'a rank sends':>12}",
    ]
    lines += [
        f"  {one['strategy']:<17} {spell_seconds(one['step_s']):>8} {one['efficiency']:>10.1%} "
        f"{spell_bytes(one['sent_bytes']):>12}"
        for one in sorted(last["predictions"], key=lambda one: one["step_s"])
    ]
    return lines
