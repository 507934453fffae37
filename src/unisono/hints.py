"""Words for who has mistyped a name: what was probably meant (no torch)."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[object]) -> str:
    """Return `` Hint: did you mean ...?`` for a name that is none of `known`; nothing where none is near."""
    near = difflib.get_close_matches(name, [str(other) for other in known], n=1, cutoff=0.5)
    return f" Hint: did you mean {near[0]!r}?" if near else ""
