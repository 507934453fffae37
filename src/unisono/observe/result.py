"""What a run has come to, as a dictionary that notebooks show as a table (pure, but for `Result.read`)."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, final

from unisono.errors import DataError
from unisono.observe.run_json import read_object
from unisono.system.hints import nearest
from unisono.system.messages import with_own_lines

_LATER = ("fingerprint", "metrics")  # shown by themselves


def html_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return a table of names and values, in the colours of the page that it is put on."""
    cells = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left;overflow-wrap:anywhere">{escape(_shown(value))}</td></tr>'
        for name, value in rows
    )
    return f'<table><caption style="text-align:left;font-weight:600">{escape(title)}</caption>{cells}</table>'


@final
class _Words(str):
    """A message that `KeyError` shows as it is, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


@final
class Result(dict[str, Any]):
    """What ``result.json`` holds: fingerprint, metrics, steps, seconds; a notebook shows it as a table."""

    @classmethod
    @with_own_lines
    def read(cls, run: str | Path) -> Self:
        """Return the result of a run directory.

        Raises:
            DataError: There is none: the run has not come to its end, or it is no run directory.
        """
        found = read_object(Path(run) / "result.json")
        if not found:
            raise DataError(
                f"expected {Path(run) / 'result.json'}, which a run writes at its end, found nothing there. "
                f"Hint: start the run again with out={str(run)!r}, it goes on; or name another directory."
            )
        return cls(found)

    def __missing__(self, name: str) -> NoReturn:
        inside = [
            f"result['{part}']['{name}']" for part, held in self.items() if isinstance(held, dict) and name in held
        ]
        raise KeyError(_Words(f"a result has no {name!r}.{self._instead(name, inside)}"))

    if not TYPE_CHECKING:  # a type checker would take any name for one that there is

        def __getattr__(self, name: str) -> NoReturn:
            """Say that what is asked for is an item."""
            hint = "" if name.startswith("_") else f" Hint: result[{name!r}]." if name in self else self._instead(name)
            raise AttributeError(f"a result has no attribute {name!r}.{hint}", name=name, obj=None)

    def _instead(self, name: str, inside: Sequence[str] = ()) -> str:
        if inside:
            return f" Hint: {' or '.join(inside)}."
        near = nearest(name, [*self, *self.get("metrics", {})])
        return near or f" It has {', '.join(self) or 'nothing yet: the last step is not done'}."

    def _repr_html_(self) -> str:
        if not self:
            return html_table("No result yet: the last step is not done", [])
        metrics = [(name, value) for name, value in self.get("metrics", {}).items()]
        rest = [(name, value) for name, value in self.items() if name not in _LATER and not isinstance(value, dict)]
        return html_table("Result", [("fingerprint", self.get("fingerprint", "")), *metrics, *rest])


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
