"""Every word of a public name is plain English, or the glossary explains it."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import unisono
from unisono import callbacks
from unisono.cli.main import unisono as command_line

ROOT = Path(__file__).parents[1]
PLAIN = set((ROOT / "tests" / "plain_words.txt").read_text().split())
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


def words_of(name: str) -> Iterator[str]:
    """Return the words of an identifier or option: ``clip_norm``, ``SpanF1``, ``--batch-size``."""
    name = name.replace("MLflow", "mlflow").replace("WandB", "wandb")
    for part in re.split(r"[\W_]+", name):
        for word in re.findall(r"[A-Z]+\d*(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*", part):
            if len(word) > 1:
                yield word.lower()


def terms(glossary: str) -> set[str]:
    """Return the words of the first columns."""
    rows = re.findall(r"^\| (`.+?) \|", glossary, re.MULTILINE)
    return {word for row in rows for word in words_of(row)}


def parameters(thing: object) -> list[str]:
    """Return the names of what a function or class takes."""
    try:
        return list(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return []


def names_in_python() -> Iterator[tuple[str, str]]:
    """Return every public name with the object that has it."""
    public = {name: getattr(unisono, name) for name in unisono.__all__}
    public |= {name: thing for name, thing in vars(callbacks).items() if not name.startswith("_")}
    for owner, thing in public.items():
        yield owner, owner
        yield from ((parameter, owner) for parameter in parameters(thing))
        if not inspect.isclass(thing):
            continue
        pythons = {*dir(Exception)} | ({*dir(dict)} if issubclass(thing, dict) else set())
        for name in {*dir(thing)} - pythons:
            if not name.startswith("_"):
                yield name, owner
                yield from ((parameter, f"{owner}.{name}") for parameter in parameters(getattr(thing, name)))


def names_on_the_command_line(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """Return every verb and option."""
    for parameter in command.params:
        yield from ((flag, path) for flag in (*parameter.opts, *parameter.secondary_opts))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield name, path
            found = command.get_command(context, name)
            assert found is not None
            yield from names_on_the_command_line(found, f"{path} {name}")


def unexplained(names: Iterator[tuple[str, str]], glossary: str = GLOSSARY) -> dict[str, str]:
    """Return words that are neither plain nor in the glossary, with one place of each."""
    known = PLAIN | terms(glossary)
    singular = {word[:-1] for word in known if word.endswith("s")} | {f"{word}s" for word in known}
    return {word: place for name, place in names for word in words_of(name) if word not in known | singular}


def test_public_names_are_explained():
    """In Python and on the command line."""
    assert unexplained(names_in_python()) == {}
    assert unexplained(names_on_the_command_line(command_line, "unisono")) == {}


@pytest.mark.parametrize("word", ["replica", "ledger", "heartbeat", "straggler"])
def test_a_term_without_a_row_is_found(word):
    """The control: a term whose row is not there, and a new name with an odd word."""
    without = "\n".join(line for line in GLOSSARY.splitlines() if f"`{word}" not in line)
    assert word in unexplained(iter([(f"{word}_count", "a test")]), without)
    assert unexplained(iter([("Watchman", "a test")])) == {"watchman": "a test"}


def test_plain_words_are_words_in_use():
    """The list holds nothing that no public name needs, and no term of the glossary."""
    used = {word for name, _ in names_in_python() for word in words_of(name)}
    used |= {word for name, _ in names_on_the_command_line(command_line, "unisono") for word in words_of(name)}
    assert PLAIN - used == set()
    assert PLAIN & terms(GLOSSARY) == set()
