"""``unisono report``: runs, scaling studies and forecasts on one page; and all ranks on one time line."""

from pathlib import Path

import click

from unisono.cli.options.fields import out_option, result_options
from unisono.cli.options.settings import PATH, RUN
from unisono.cli.output.outcome import tell, verb
from unisono.cli.output.tables import answer
from unisono.errors import ConfigError


@click.command(short_help="Put runs, scaling and forecasts on one page.")
@click.argument("sources", metavar="RUN|SCALING|FORECAST...", nargs=-1, required=True, type=RUN)
@out_option("The page.", usual="report.html")
@click.option("--timeline", type=PATH, metavar="FILE",
              help="Write all ranks' steps of one RUN for Perfetto or chrome://tracing, and no page.")  # fmt: skip
@result_options
@verb("report")
def report(sources: tuple[str, ...], out: str | None, timeline: str | None, as_json: bool) -> None:
    """Write one self-contained HTML page: it needs no network, runs no script and is under 1 MB.

    Of a run: learning curves, throughput, where each rank's time goes, stragglers, interruptions, checkpoints,
    environment, score and fingerprint; several runs, or a folder of them (its 8 newest), are compared, too.
    Of ``unisono bench scaling``: speed-up, and why it flattens. Of ``unisono forecast -o FILE``: the forecast.

    Exit code: 0 when it was written; 2 where a source is none of these, damaged, or a study of another job.
    """
    _check_suffix("--timeline", timeline, (".json",), "a time line for Perfetto")
    _check_suffix("--out", out, (".html", ".htm"), "a page")
    if timeline is not None:
        from unisono.report.timeline import write_timeline

        _check_single(sources, out)
        num_events = write_timeline(Path(sources[0]), Path(timeline))
        answer({"timeline": timeline, "events": num_events}, as_json, list)
        tell(f"{num_events} events in {timeline}: open it in ui.perfetto.dev or chrome://tracing")
        return
    from unisono.report.page import write_page
    from unisono.report.run_view import each_run
    from unisono.report.sources import MOST_SOURCES

    place = Path(out or "report.html")
    given = [Path(source) for source in sources]
    paths, told = each_run(given, MOST_SOURCES)
    is_there = place.exists()
    write_page(paths, place, optional=[path for path in paths if path not in given])
    for line in told:
        tell(line)
    answer({"page": str(place), "bytes": place.stat().st_size}, as_json, list)
    tell(f"{place} ({place.stat().st_size // 1024} KB{', in place of an earlier report' * is_there})")


def _check_single(sources: tuple[str, ...], out: str | None) -> None:
    if out is not None or len(sources) != 1:
        raise ConfigError("--timeline is of one run, and no page: expected one RUN and no --out.")


def _check_suffix(option: str, name: str | None, suffixes: tuple[str, ...], what: str) -> None:
    if name is not None and Path(name).suffix.lower() not in suffixes:
        wanted = Path(name).with_suffix(suffixes[0]) if Path(name).name else f"FILE{suffixes[0]}"
        raise ConfigError(
            f"expected {option} ending in {' or '.join(suffixes)}, since it is {what}, got {name!r}. "
            f"Hint: {option} {wanted}."
        )
