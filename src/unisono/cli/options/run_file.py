"""Run files: the options of a run in TOML. Must not import torch.

In: a file (or a run directory, whose ``run.toml`` is taken). Its keys are the options' names, with ``-`` or ``_``, and
``recipe``; what is typed on the command line wins. Out: what the command takes for its defaults.
"""

import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from unisono.cli.options.fields import FieldOption
from unisono.errors import ConfigError
from unisono.options.quantities import shown
from unisono.system.hints import nearest

RUN_FILE = "run.toml"
MOST_BYTES = 1 << 16


def take_config(context: click.Context, value: str | None, passed_over: Collection[str] = ()) -> None:
    """Make the entries of a run file the defaults of a command's options, but for those that are passed over.

    Raises:
        UsageError: The file cannot be read, or an entry is none of the command's; names file, line and allowed keys.
    """
    if value is not None:
        path = Path(value)
        path = path / RUN_FILE if path.is_dir() else path
        found = read_run_file(path, context.command.params, passed_over)
        names = {item.name for item in context.command.params}
        if "recipe" in found and "recipe" not in names:  # commands that take scripts, too
            found["target"] = found.pop("recipe")
        context.default_map = found


def read_run_file(
    path: Path, parameters: list[click.Parameter], passed_over: Collection[str] = ()
) -> dict[str, Any]:  # fmt: skip
    """Return the entries of a run file by parameter name, checked, without those that are passed over."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise click.UsageError(f"--config {path}: expected at most {MOST_BYTES:,} bytes of options, found more.")
        text = content.decode(errors="surrogateescape")
        entries = tomllib.loads(text)
    except OSError as error:
        raise click.UsageError(f"--config {path}: {error.strerror}. Hint: {_instead(path)}") from error
    except ValueError as error:
        raise click.UsageError(f"--config {path} is not TOML: {error}.") from error
    except RecursionError:
        raise click.UsageError(
            f"--config {path}: expected options as NAME = VALUE, found lists or tables nested without end. "
            "Hint: a run file has one option a line."
        ) from None
    known = {str(item.name): item for item in parameters if isinstance(item, FieldOption | click.Argument)}
    if "target" in known:
        known["recipe"] = known.pop("target")
        del known["args"]
    known |= {name: click.Argument([name]) for name in passed_over}
    found = {}
    for key, entry in entries.items():
        name = key.replace("-", "_")
        parameter = known.get(name)
        where = f"--config {path}, line {_line_of(key, text)}"
        if parameter is None:
            allowed = ", ".join(sorted(known))
            raise click.UsageError(f"{where}: unknown key {key!r}.{nearest(name, known)} Allowed keys: {allowed}.")
        if name in found:
            raise click.UsageError(
                f"{where}: {key!r} stands there twice, with - and with _. Hint: leave one of them out."
            )
        if name in passed_over:
            continue
        found[name] = _checked(parameter, entry, f"{where}: {key}")
    return found


def _instead(path: Path) -> str:
    if (path.parent / "program.json").exists():
        return "no recipe made this run, but a program: start that again."
    return "a TOML file, or a run directory."


def _checked(parameter: click.Parameter, entry: Any, where: str) -> Any:
    place, _, key = where.partition(": ")
    item = parameter.item if isinstance(parameter, FieldOption) else None
    is_number = isinstance(entry, int | float) and not isinstance(entry, bool)
    if item is not None and (item.kind is bool or (item.of is not None and not item.is_list and not item.also)):
        try:
            return item.checked(entry, key)
        except ConfigError as error:
            raise click.UsageError(f"{place}: {error}") from None
    if isinstance(entry, list) and all(isinstance(part, str | int | float) for part in entry):
        return ",".join(map(str, entry))
    if not isinstance(entry, str) and not is_number:
        raise click.UsageError(f"{where}: expected a text, a number or a list of them, got {shown(entry)}.")
    return str(entry)


def _line_of(key: str, text: str) -> int:
    """Return the line (1-based) where a key of the top level, or a table of that name, stands."""
    written = re.compile(rf"\s*(\[\s*)?[\"']?{re.escape(key)}[\"']?\s*[=\].]")
    return next((number for number, line in enumerate(text.splitlines(), 1) if written.match(line)), 1)
