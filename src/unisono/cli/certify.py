"""``unisono certify``: which claims hold on this machine, each with a control that must fail."""

from pathlib import Path
from typing import Any

import click

from unisono.cli.options.fields import out_option, result_options, single
from unisono.cli.options.settings import PATH
from unisono.cli.output.outcome import FAILED as CODE_FAILED
from unisono.cli.output.outcome import complain, nothing_kept, tell, verb
from unisono.cli.output.tables import answer, table
from unisono.errors import ConfigError


@click.command(short_help="Certify which claims hold on this machine.")
@single("device", "What is certified: cpu, cuda.", default="cpu", basic=True)
@click.option("--quick", is_flag=True, help="About a minute: fewer processes and repetitions.")
@out_option("Keep certificate.json and certificate.html here.", word="DIR", usual="nothing is kept")
@click.option("--check", type=PATH, metavar="FILE", help="Run nothing: is this certificate whole, and of this machine?")
@result_options
@verb("certify", nothing_kept("the certificate"))
def certify(device: str, quick: bool, out: str | None, check: str | None, as_json: bool) -> int:
    """Check on this machine what unisono claims, and write one page that says what was seen.

    The same bits on several numbers of processes, in float32 and bfloat16; after a kill, on another number; with fsdp
    and pipeline; operations repeated; compiled code; what a step takes. Each check has a control, in which something
    is broken on purpose: where that is not noticed, nothing is certified. What could not run is listed with the reason.

    Exit code: 0 when no check fails; 1 when one does; 2 for wrong settings, a device that is not there, and a
    certificate that is damaged or of another machine; 130 after Ctrl-C.
    """
    from unisono.experiments.certify.certificate import conclusion

    found = _make(device, quick, out) if check is None else _look(Path(check), quick or out is not None)
    answer(found, as_json, lambda: _table(found))
    tell(conclusion(found))
    return _conclude(found)


def _make(device: str, quick: bool, out: str | None) -> dict[str, Any]:
    from unisono.experiments import certify as experiment
    from unisono.experiments.certify import page

    if out is not None:
        page.prepare(Path(out))
    found = experiment.certify(device, quick=quick, tell=tell)
    if out is not None:
        page.write(found, Path(out))
        tell(f"{Path(out) / page.HTML}, {Path(out) / page.JSON}")
    return found


def _look(file: Path, makes_one: bool) -> dict[str, Any]:
    from unisono.experiments import certify as experiment

    if makes_one:
        raise ConfigError("--check looks at a certificate, and makes none: expected no --out and no --quick.")
    found = experiment.check(file)
    tell(f"whole, and of this machine as it is: {found['written']}")
    return found


def _table(found: dict[str, Any]) -> list[str]:
    rows = [(row["name"], row["verdict"], row["why_not"] or None) for row in found["rows"]]
    return table(("check", "verdict", "why"), rows, left=("check", "verdict", "why"))


def _conclude(found: dict[str, Any]) -> int:
    failed = [row for row in found["rows"] if row["verdict"] == "FAILED"]
    for row in failed:
        complain(f"{row['name']} FAILED: {'; '.join(row['found'])}. Control: {row['control']}")
    return CODE_FAILED if failed else 0
