"""``unisono blame``: rank the samples of a past step, or of an epoch, by what they do to the gradient."""

import textwrap
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import click

from unisono.cli.options.fields import single
from unisono.cli.options.settings import number as type_of
from unisono.cli.output.outcome import FAILED, nothing_kept, tell, verb
from unisono.cli.output.tables import answer, table
from unisono.cli.past.replay import compared, computing_again, described, number, run_and_args
from unisono.observe.suspects import MEASURES, order
from unisono.options.quantities import EPOCHS, PLACE, STEPS

_WIDTH, _LINES = 80, 4


@click.command(short_help="Rank the samples of a step by what they do to it.")
@run_and_args
@single("step", "Which one; counted from 1.", of=STEPS, word="N", usual="the last one")
@single("epoch", "All steps of this one; counted from 1.", of=EPOCHS, word="E")
@single("top", "How many samples to print; 0: all.", of=PLACE, default=10, word="K")
@single("show", "What so many of them are: text or picture.", of=PLACE, default=3, word="K")
@click.option("--by", type=click.Choice(MEASURES), default="suspect", show_default=True,
              help="What ranks them; suspect: what is out of scale, then the largest losses.")  # fmt: skip
@click.option("--without-sample", "without", multiple=True, type=type_of(PLACE), metavar="INDEX",
              help="Compute the step without this sample too; repeatable: without all of them.")  # fmt: skip
@computing_again
@verb("blame", nothing_kept("the copy"))
def blame(
    directory: str, args: tuple[str, ...], as_json: bool, epoch: int | None, top: int, show: int, by: str, **given: Any
) -> int:
    """Rank samples by their loss and by what they do to their step: suspects for wrong labels and broken inputs.

    Computes the step again as ``unisono replay`` does, and compares it; then each sample by itself, without dropout.
    change: how far leaving the sample out moves the step's gradient, in parts of its length. cosine: between the
    gradient with the sample and without it. scale: how large its input is beside the median of its step; beyond three
    times more or less it is out of scale.

    Exit code: 0; 1 when a step is another than in the ledger; 2 for wrong settings, or a program or data that have
    changed; else that of a failed worker.
    """
    from unisono.experiments.past.examine import epoch_of, examine

    if epoch is not None:
        given["first"], given["step"] = epoch_of(directory, epoch, given["step"])
    found = examine(directory, args, by=by, show=show, tell=tell, **given)
    rows = [{"step": told["step"]} | one for told in found.steps for one in _with_shown(told)]
    rows.sort(key=lambda row: order(row, by))
    rows = rows[: top or None]
    steps = [{name: value for name, value in told.items() if name in _OF_A_STEP} for told in found.steps]
    plain = described(found.replay) | {"by": by, "steps": steps, "samples": rows}
    answer(plain, as_json, lambda: [compared(found.replay), *_lines(found.steps, rows, show)])
    return FAILED if found.replay.differing else 0


_OF_A_STEP = ("step", "epoch", "loss", "gradient_norm", "agreement", "without")


def _with_shown(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for place, one in enumerate(told["samples"]):
        more = told["shown"].get(str(place))
        yield one if more is None else one | {"shown": more}


def _lines(steps: list[dict[str, Any]], rows: list[dict[str, Any]], show: int) -> Iterator[str]:
    if not steps:
        return
    cells = [
        (row["step"] if len(steps) > 1 else None, row["index"], row["replica"],
         *map(number, itemgetter("loss", "gradient_norm", "change", "cosine")(row)),
         row["scale"] and number(row["scale"]))
        for row in rows
    ]  # fmt: skip
    yield ""
    yield from table(("step", "sample", "replica", "loss", "gradient", "change", "cosine", "scale"), cells)
    for row in [row for row in rows if "shown" in row][:show]:
        yield ""
        yield from _shown(row)
    if len(steps) == 1:
        yield ""
        yield f"cosine between the step's gradient and the sum of its samples': {number(steps[0]['agreement'])}"
    for told in steps:
        if (rest := told.get("without")) is not None:
            yield f"step {told['step']} without what is left out:"
            yield f"  loss {number(told['loss'])} -> {number(rest['loss'])}"
            yield f"  length of the gradient {number(told['gradient_norm'])} -> {number(rest['gradient_norm'])}"
            yield f"  change {number(rest['change'])}, cosine {number(rest['cosine'])}"


def _shown(row: dict[str, Any]) -> Iterator[str]:
    shown = row["shown"]
    values = ", ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in shown["values"])
    yield f"sample {row['index']}{': ' * bool(values)}{values}"
    text = shown.get("text") or " ".join(map(str, shown.get("tokens", ())))
    printable = "".join(char if char.isprintable() else " " for char in text)
    yield from textwrap.wrap(printable, _WIDTH - 2, max_lines=_LINES, placeholder=" ...", initial_indent="  ",
                             subsequent_indent="  ")  # fmt: skip
    yield from (f"  {line}" for line in shown.get("picture", ()))
