"""What a page is made from: which kind of result a path holds, and whether several can stand on one page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.observe.run_place import BEGUN, no_run
from unisono.report.comparison.compare_section import compare_section
from unisono.report.content import Remark, Section
from unisono.report.forecast_section import KIND as FORECAST
from unisono.report.forecast_section import forecast_section
from unisono.report.past_sections import family_sections
from unisono.report.run_section import run_section
from unisono.report.run_view import RunView, read_run
from unisono.report.scaling_section import scaling_sections
from unisono.scaling.study import KIND as STUDY
from unisono.scaling.study import Study, study_from
from unisono.system.files import read_json

MOST_SOURCES = 8
_MOST_NAMED = 4  # in a title


def sections_of(sources: Sequence[Path], optional: Sequence[Path] = ()) -> tuple[str, list[Section]]:
    """Return the page's title and sections.

    Args:
        sources: What is shown.
        optional: Those among them that were found in a folder: where another can be shown, one that is damaged has a
            section that says why it is not.

    Raises:
        ConfigError: No source or too many, one of them is nothing of ours, or they cannot be compared.
    """
    if not 1 <= len(sources) <= MOST_SOURCES:
        raise ConfigError(f"expected 1 to {MOST_SOURCES} runs or results, got {len(sources)}.")
    found: list[RunView | Study | dict[str, Any]] = []
    damaged: list[Section] = []
    for source in sources:
        try:
            found.append(read_source(source))
        except ConfigError as error:
            if source not in optional or len(damaged) + 1 == len(sources):
                raise
            why = Remark(text=f"It is not shown: {error}", tone="alarm")
            damaged.append(Section(title=f"Run {source.name}", lines=[str(source)], findings=[why]))
    runs = [one for one in found if isinstance(one, RunView)]
    studies = [one for one in found if isinstance(one, Study)]
    forecasts = [one for one in found if isinstance(one, dict)]
    _check_comparable(studies)
    sections: list[Section] = []
    if len(runs) > 1:
        sections.append(compare_section(runs))
    sections += family_sections(runs)
    sections += [run_section(run, len(runs)) for run in runs]
    sections += damaged
    sections += scaling_sections(studies)
    sections += [forecast_section(one) for one in forecasts]
    names = [*dict.fromkeys([run.name for run in runs] + [study.target for study in studies])]
    if len(names) > _MOST_NAMED:
        names = [*names[: _MOST_NAMED - 1], f"and {len(names) - _MOST_NAMED + 1} more"]
    kinds = "Scaling" if studies and not runs else "Forecast" if forecasts and not names else "Report"
    return f"{kinds}: {', '.join(names)}" if names else "Forecast", sections


_WRITTEN = "unisono train --out DIR, unisono bench scaling and unisono forecast -o FILE write them"


def read_source(path: Path) -> RunView | Study | dict[str, Any]:
    """Return what a path holds."""
    if path.is_dir():
        if any((path / name).exists() for name in BEGUN):
            return read_run(path)
        if (path / "scaling.json").exists():
            return read_source(path / "scaling.json")
    if not path.is_file():
        raise no_run(path, expected="a run directory, scaling.json or a kept forecast", hint=_WRITTEN)
    if path.suffix == ".py":
        raise ConfigError(
            f"expected the directory of a run, got the script {str(path)!r}. "
            "Hint: unisono report DIR, where DIR is the script's out=."
        )
    plain = read_json(path)
    kind = plain.get("kind") if isinstance(plain, dict) else None
    if kind == STUDY:
        return study_from(plain, str(path))
    if kind == FORECAST:
        return dict(plain)
    raise ConfigError(f"{path} holds neither a scaling study nor a forecast, but {kind or 'something else'!r}.")


def _check_comparable(studies: Sequence[Study]) -> None:
    for study in studies[1:]:
        first = studies[0]
        if (study.target, study.weak) != (first.target, first.weak):
            raise ConfigError(
                f"these scaling studies cannot be compared: one is {'weak' if first.weak else 'strong'} scaling of "
                f"{first.target}, another {'weak' if study.weak else 'strong'} scaling of {study.target}. "
                "Hint: report them one by one."
            )
