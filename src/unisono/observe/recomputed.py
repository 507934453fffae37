"""Steps after the checkpoint that a run goes on from are computed again: are they what they were? Pure.

In: the lines of the ledger that were cut off, and the new ones. Out: at most once, what differs, in words.
"""

import json
from collections.abc import Iterable
from typing import Any, final

from unisono.observe import chain

_CAUSES = (
    "The same steps must give the same bits, so the run's result now depends on where it was interrupted. Usual "
    "causes: a variable of the program's own loop that starts over with every launch (a factor that decays, a counter "
    "of epochs: compute it from batch.step or batch.epoch, or let run.register(name, object) keep its state in the "
    "checkpoints); a program or data changed since; another kind of CPU. Hint: train the same without an interruption "
    "into another out= (--out), then `unisono diff` both; with detail=True (--detail) it names the parameter too."
)


@final
class Recomputed:
    """Compares each step's new line with the one that was cut off.

    Args:
        cut: Lines as `chain.parse_all` returns them, of any steps.
        last_step: The last step that is kept: those after it are computed again.
    """

    def __init__(self, cut: Iterable[chain.Line], last_step: int) -> None:
        self._before = {entry["step"]: line for line, entry in cut if entry is not None and entry["step"] > last_step}

    def difference(self, step: int, line: bytes) -> str:
        """Return in words how a step's new line differs from its old one, the first time; else nothing."""
        before = self._before.pop(step, line)
        if before == line:
            return ""
        old, new = json.loads(before), json.loads(line)
        names = [name for name in new if name != chain.PREVIOUS and name in old and old[name] != new[name]]
        if not names:
            return ""  # an older version wrote it otherwise, or the lines before are lost
        self._before = {}
        loss = f" (loss {_spelt(old['loss'])} before, {_spelt(new['loss'])} now)" if "loss" in names else ""
        return (
            f"step {step} was computed again after the resume, and is another than before in {', '.join(names)}{loss}. "
            f"{_CAUSES}"
        )


def _spelt(value: Any) -> str:
    try:
        return repr(float.fromhex(value))
    except (TypeError, ValueError):
        return repr(value)  # of another program's line
