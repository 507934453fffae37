"""``unisono doctor``: look at this machine, or at a script, before a run."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unisono.cli.options.fields import result_options
from unisono.cli.options.settings import PATH
from unisono.cli.output.outcome import FAILED, verb
from unisono.errors import ConfigError
from unisono.system.files import to_json

if TYPE_CHECKING:
    from unisono.doctor.finding import Finding


@click.command(short_help="Find what would spoil a run: this machine, a script.")
@click.argument("script", required=False, metavar="[SCRIPT]")
@click.option("--dir", "directory", type=PATH, metavar="DIR", help="Also test whether checkpoints are safe in DIR.")
@result_options
@verb("doctor")
def doctor(script: str | None, directory: str | None, as_json: bool) -> int:
    """Look at this machine; with SCRIPT, look for known mistakes in it instead, without running it.

    The machine: cores, threads, memory, shared memory, open files, network, clock, torch, GPUs, and two processes that
    talk as training would. A script: ranks taken for devices, collectives that not all ranks reach, downloads by every
    rank, and others, with their lines; a comment "# unisono: ignore[rule]" silences a line.

    Each line is ok, warn (a run starts, with a trap) or fail, with what to do.

    Exit code: 0 when nothing fails; 1 when something does; 2 for wrong usage.
    """
    found = _machine(directory) if script is None else _script(script, directory)
    is_ok = all(finding.status != "fail" for finding in found)
    lines = [_line(finding, script) for finding in found] or [f"{script}: no known mistake"] * (script is not None)
    if as_json:
        click.echo(to_json({"ok": is_ok, "findings": [asdict(finding) for finding in found]}, indent=1))
    else:
        click.echo("\n".join(lines))
    return 0 if is_ok else FAILED


def _machine(directory: str | None) -> "list[Finding]":
    from unisono.doctor.directory import check_directory
    from unisono.doctor.machine import check_machine, list_gpus
    from unisono.doctor.self_test import check_talk

    found = check_machine(os.environ)
    if directory is not None:
        found.append(check_directory(directory))
    return [*found, *check_talk(list_gpus(), os.environ)]


def _script(script: str, directory: str | None) -> "list[Finding]":
    from unisono.doctor.script import examine
    from unisono.launchers.spec import ScriptTarget, check_target

    if directory is not None:
        raise ConfigError("expected SCRIPT or --dir, got both. Hint: call doctor once for each.")
    check_target(ScriptTarget(path=script))
    try:
        text = Path(script).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # also bytes that are no UTF-8, or a zero byte in the name
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"expected a Python file at {script!r}: {why}. Hint: give the path of the script.") from None
    return examine(text)


def _line(finding: "Finding", script: str | None) -> str:
    place = f"{finding.name:<14}" if finding.line is None else f"{script}:{finding.line}: [{finding.name}]"
    advice = f"\n      -> {finding.hint}" if finding.hint else ""
    return f"{finding.status:<5} {place} {finding.detail}{advice}"
