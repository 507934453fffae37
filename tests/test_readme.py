"""The programs and commands of README and quickstart run as they are written."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from unisono.cli.main import unisono

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text()
FINGERPRINT = re.compile(r"\b[0-9a-f]{64}\b")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"<!-- runs in the tests -->\n```{kind}\n(.*?)```", page, re.S)


PROGRAMS = [*blocks(README, "python"), *blocks(QUICKSTART, "python")]


PLAYED = [*PROGRAMS, *blocks((ROOT / "docs" / "own-model.md").read_text(), "python")]  # in test_pages_together.py
OTHERS = [block for page in PAGES for block in blocks(page.read_text(), "python") if block not in PLAYED]


def commands(page: str) -> list[str]:
    """Return the command lines of a page's console blocks, continued lines joined."""
    lines = [line for block in re.findall(r"```console\n(.*?)```", page, re.S) for line in block.splitlines()]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in joined if line.removeprefix("$ ").startswith("unisono ")]


def unknown(command: str) -> list[str]:
    """Return what a command line of ours says that the command line does not know."""
    words = shlex.split(command.partition(" #")[0])[1:]
    found: click.Command = unisono
    context = click.Context(unisono)
    while isinstance(found, click.Group):
        name = words.pop(0)
        following = found.get_command(context, name)
        if following is None:
            return [name]
        found = following
    options = {name: one for one in found.params for name in [*one.opts, *one.secondary_opts] if name.startswith("-")}
    missing: list[str] = []
    ours = iter(words[: words.index("--")] if "--" in words else words)
    for word in ours:
        name, _, value = word.partition("=")
        if name in options:
            if not value and not getattr(options[name], "is_flag", False):
                next(ours, None)
        elif word.startswith("-") and word not in ("-h", "--help"):
            missing.append(word)
        elif not word.startswith("-") and not found.context_settings.get("allow_interspersed_args", True):
            break  # a script, and what is its own
    return missing


def run(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def play(program: Path, directory: Path, *start: str) -> str:
    """Run a program in `directory` and return the one fingerprint that it prints."""
    printed = run([*start, str(program)], directory)
    found = set(FINGERPRINT.findall(printed))
    assert len(found) == 1, printed
    return found.pop()


def test_the_readme_is_short_and_has_fifteen_lines_of_code():
    """At most 130 lines of 120 columns, one program of fifteen, and the command that CI runs."""
    assert len(README.splitlines()) <= 130
    assert [line for line in README.splitlines() if len(line) > 120 and not line.startswith("![")] == []
    (program,) = blocks(README, "python")
    assert sum(bool(line.strip()) for line in program.splitlines()) <= 15
    assert "\nmake test " in README
    assert len(PROGRAMS) == 2


def test_the_program_gives_one_fingerprint_however_it_is_started(tmp_path):
    """The README's: by `python file` and by `unisono run`. The quickstart's: test_pages_together.py."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[0])
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    alone = play(program, tmp_path / "a", sys.executable)
    assert play(program, tmp_path / "b", sys.executable, "-m", "unisono", "run", "-n", "3") == alone


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_programs_of_other_pages_run(number, tmp_path):
    """They start their workers themselves."""
    (tmp_path / "program.py").write_text(OTHERS[number])
    assert run([sys.executable, str(tmp_path / "program.py")], tmp_path)


@pytest.mark.slow
def test_the_readme_proves_what_it_shows(tmp_path):
    """The commands marked in the README, made short, end well and print as many equal fingerprints as it shows."""
    shown = blocks(README, "console")
    assert shown
    for block in shown:
        (command,) = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
        quick = [sys.executable, "-m", *shlex.split(command), "--epochs", "1"]
        printed = run(quick, tmp_path)  # code 0: equal
        assert len(set(FINGERPRINT.findall(printed))) == 1
        assert len(FINGERPRINT.findall(printed)) == len(FINGERPRINT.findall(block))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: os.fspath(page.relative_to(ROOT)))
def test_commands_on_the_pages_exist(page):
    """Every `unisono` command line in the documentation has a verb and options that there are."""
    assert [(command, unknown(command)) for command in commands(page.read_text()) if unknown(command)] == []


def test_made_up_commands_would_be_noticed():
    """The control of the test above; the pages do have commands."""
    assert unknown("unisono trian digits") == ["trian"]
    assert unknown("unisono train digits --replica 8 -- --anything") == ["--replica"]
    assert unknown("unisono bench collectives -r 2 --picture f.svg") == []
    assert unknown("unisono run -n 2 train.py --anything") == []
    assert unknown("unisono run --nn 2 train.py") == ["--nn"]
    assert sum(len(commands(page.read_text())) for page in PAGES) > 15
