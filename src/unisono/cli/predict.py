"""``unisono predict``: ask the model of a recipe's run."""

import sys
from pathlib import Path
from typing import Any

import click

from unisono.cli.options.fields import result_options, single
from unisono.cli.options.settings import PATH, RUN
from unisono.cli.output.outcome import tell, tidy, verb
from unisono.cli.output.tables import answer, table
from unisono.errors import ConfigError, DataError
from unisono.options.quantities import COUNT, SEED, TOKENS

_STDIN = "-"
_LONGEST_NAME = 38
_OF_KINDS = {"write": "tokens", "resize": "images", "text_column": "texts"}


@click.command(short_help="Ask a trained model about files, texts or images.")
@click.argument("run", type=RUN, metavar="RUN")
@click.argument("files", type=PATH, nargs=-1, required=True, metavar="FILE...|-")
@single("top", "Show the K likeliest classes. A language model: draw from the K likeliest tokens.", of=COUNT,
        usual="3 classes, 50 tokens")  # fmt: skip
@single("checkpoint", "The newest, the one with the best test score, or that of a step.", default="last",
        word="last|best|STEP")  # fmt: skip
@single("write", "A language model: go on with each text, up to K tokens.", of=TOKENS)
@single("seed", "Of what is written.", of=SEED, default=0, word="S")
@click.option("--resize", is_flag=True, help="Resize images of another size than in training.")
@single("text_column", "Column of the texts in a table.", usual="that of the training")
@single("device", "Where to compute: cpu, cuda, cuda:N.", default="cpu", word="NAME")
@result_options
@verb("predict")
def predict(run: str, files: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Ask the model that `unisono train` has kept in RUN. Neither its data nor its options are needed.

    Images: each FILE is one; -: names of files on standard input, one a line.

    Texts: each FILE is one text, or a table (.csv, .tsv, .jsonl) with one a row; -: one text a line on standard input.

    A language model (recipe lm) tells the perplexity of each text, and goes on with it where --write says so.

    Files are read, cut and normalised by the code of the run's evaluations. --json prints a list.

    Exit code: 0; 1 when no checkpoint can be trusted; 2 for wrong settings, a run without a model, or a file that is
    missing, empty or of another kind.
    """
    from unisono.determinism.switches import set_determinism
    from unisono.recipes.trained.inputs import texts
    from unisono.recipes.trained.load import open_model
    from unisono.recipes.trained.model_file import ModelFile

    file = ModelFile.read(Path(run))
    kind = file.inputs["kind"]
    _check(file.recipe, [name for name, its in _OF_KINDS.items() if given[name] and its != kind])
    items = [item for name in files for item in (_lines(kind) if name == _STDIN else [Path(name)])]
    set_determinism(file.threads)
    model = open_model(Path(run), given["checkpoint"], given["device"], tell)
    top = {} if given["top"] is None else {"top": given["top"]}
    how = {name: given[name] for name in ("resize", "text_column")} | ({} if kind == "tokens" else top)
    found = model.predict(items, **how)
    if given["write"]:
        how = {"tokens": given["write"], "seed": given["seed"], **top}
        found = [
            row | {"written": model.write(text, **how)} for row, text in zip(found, texts(file, items)[1], strict=True)
        ]
    answer(found, as_json, lambda: map(tidy, _for_people(found)))
    tell(f"{model.recipe}, step {model.step}")


def _check(recipe: str, useless: list[str]) -> None:
    if useless:
        flag = useless[0].replace("_", "-")
        raise ConfigError(f"a run of recipe {recipe!r} has no use for --{flag}. Hint: leave it out.")


def _lines(kind: str) -> list[Any]:
    """Return what stands on standard input: texts, or files' names."""
    try:
        lines = sys.stdin.buffer.read().decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"standard input: expected UTF-8, found {error}. Hint: iconv -f latin1 -t utf-8.") from None
    if not lines:
        raise DataError("standard input: expected one item a line, found nothing.")
    return list(map(Path, lines)) if kind == "images" else list(lines)


def _for_people(found: list[dict[str, Any]]) -> list[str]:
    if "perplexity" in found[0]:
        rows = [(_short(row["item"]), row["tokens"], f"{row['perplexity']:.2f}") for row in found]
        written = [line for row in found if "written" in row for line in ("", f"{row['item']}:", row["written"])]
        return table(("item", "tokens", "perplexity"), rows, left=["item"]) + written
    cells = []
    for row in found:
        others = ", ".join(f"{name} {chance:.3f}" for name, chance in [*row["top"].items()][1:])
        cells.append((_short(row["item"]), row["class"], f"{row['probability']:.3f}", others))
    return table(("item", "class", "p", "then"), cells, left=["item", "class", "then"])


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"...{name[3 - _LONGEST_NAME :]}"
