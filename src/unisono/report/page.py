"""One self-contained HTML page from runs, scaling studies and forecasts.

In: paths of results. Out: a file that needs nothing else: no script, no font, no picture from anywhere. Text is escaped
by Jinja's autoescape, charts by `svg`; a content security policy forbids everything but the page's own style sheet.
Reads files only; imports no torch.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.report.content import Section
from unisono.report.sources import sections_of
from unisono.report.svg import DARK, LIGHT, STYLE
from unisono.system.files import check_place, write_whole

MOST_BYTES = 1_000_000
MARK = 'name="generator" content="unisono'
"""By which a page of ours is known."""


def render(title: str, sections: Sequence[Section]) -> str:
    """Return the page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_shown)
    template = environment.from_string(resources.files("unisono.report").joinpath("page.html").read_text())
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    facts = {"version": metadata.version("unisono"), "written": written, "light": LIGHT, "dark": DARK}
    page = template.render(title=title, sections=sections, chart_style=Markup(STYLE), **facts)
    size = len(page.encode())
    if size > MOST_BYTES:
        raise ConfigError(f"expected a page of at most {MOST_BYTES} bytes, got {size}. Hint: report fewer at once.")
    return page


def write_page(sources: Sequence[Path], out: Path, optional: Sequence[Path] = ()) -> None:
    """Write the page of runs, scaling studies and forecasts.

    Args:
        sources: Run directories, files of ``unisono bench scaling`` and ``unisono forecast``, or directories with one.
        out: The file; a page of ours that is there is replaced.
        optional: Of the sources those that may be damaged, as `sections_of` says.

    Raises:
        ConfigError: A source is none of these, damaged, of another version, or a scaling study of another job; the
            file cannot be written, or holds something else. Nothing is written then.
    """
    check_place(out, (MARK,))
    write_sections(*sections_of(sources, optional), out)


def write_sections(title: str, sections: Sequence[Section], out: Path) -> None:
    """Write a page of `sections`, as `write_page` does."""
    check_place(out, (MARK,))
    write_whole(out, render(title, sections).encode())


def _shown(value: Any) -> Any:
    """Return text without what cannot be printed or encoded; markup as it is."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    text = "".join(char if char.isprintable() else " " if char in "\n\t" else "\N{WHITE SQUARE}" for char in value)
    return text.encode("utf-8", "replace").decode()
