"""Command lines that nobody means: drawn by seed from the definition of every verb, run by the real `main`.

In: a seed and a number of cases. Out: what is wrong with how each one ended. A line with a number that its option's
definition cannot take must end with one message and exit code 2. Any other line must end with a documented code, or
come to the point where the first process, connection or other program would be started; there an audit hook of the
interpreter stops it. Nothing may end in a traceback, hang, or print JSON that is none.

    python -m tests.adversary.options --cases 2000 --seed 1

Reads names, kinds and choices of options from click's definitions; shares nothing else with the product.
"""

import argparse
import contextlib
import io
import json
import os
import random
import re
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import click

from .values import CONFIGS, DEEPER, MEANT, NO_NUMBER, NOT_WHOLE, NUMBERS, TEXTS

STARTS = (
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "socket.connect",
    "socket.getaddrinfo", "socket.gethostbyname", "socket.bind", "subprocess.Popen",
)  # fmt: skip
"""Events of the interpreter that begin a process or a conversation; see the audit events table of Python's manual."""
LIMIT_S = 20.0
CODES = (0, 1, 2)
LONGEST_LINE = 2500
HELP = {"-h", "--help", "--help-all"}


class Reached(BaseException):
    """The line was accepted: it was about to start something."""


class Hung(BaseException):
    """The line took too long."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One command line.

    Attributes:
        words: After ``unisono``.
        is_wrong: Whether it holds a number that cannot be.
        config: Content of ``job.toml``.
    """

    words: tuple[str, ...]
    is_wrong: bool
    config: str

    def __str__(self) -> str:
        shown = (word if len(word) < 60 else f"{word[:40]}...({len(word)})" for word in self.words)
        return shlex.join(shown).encode(errors="backslashreplace").decode()


@dataclass(kw_only=True)
class Ending:
    """How a line ended; `code` is None where it was stopped before it would have started something, or has failed."""

    code: int | None = None
    out: str = ""
    err: str = ""
    reached: str = ""
    error: str = ""
    seconds: float = 0.0


def commands() -> list[tuple[tuple[str, ...], click.Command]]:
    """Return every verb and every verb's verb, with its words."""
    from unisono.cli.main import unisono

    found: list[tuple[tuple[str, ...], click.Command]] = []

    def walk(words: tuple[str, ...], command: click.Command) -> None:
        if words and not isinstance(command, click.Group):  # a group alone lists what it has
            found.append((words, command))
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None, name
                walk((*words, name), inner)

    walk((), unisono)
    return found


def draw(rng: random.Random, known: list[tuple[tuple[str, ...], click.Command]], *, wrong: bool | None = None) -> Case:
    """Return a command line.

    Args:
        rng: Decides everything.
        known: From `commands`.
        wrong: Whether it holds a number that cannot be; None: as it comes.
    """
    calm = rng.random()  # how likely a value is one that somebody could mean: else only the first would be looked at
    while True:
        path, command = known[rng.randrange(len(known))]
        options = [item for item in command.params if isinstance(item, click.Option)]
        numbers = [item for item in options if is_number(item)]
        if wrong and not numbers:
            continue
        chosen = [options[rng.randrange(len(options))] for _ in range(rng.randrange(6))] if options else []
        chosen += [rng.choice(numbers)] if wrong else []
        said, last_is_wrong = [*path, *(DEEPER.get(path, ()) if rng.random() < 0.7 else ())], {}
        for place, item in enumerate(chosen, start=1):
            words, is_wrong = _option(rng, item, calm, must=bool(wrong) and place == len(chosen))
            said += words
            last_is_wrong[item.name] = is_wrong  # of an option that stands there twice the last counts
        for item in command.params:  # last: some verbs leave everything after the first argument to a script
            if isinstance(item, click.Argument):
                said += _argument(rng, item, calm)
        is_wrong = any(last_is_wrong.values()) and not HELP & set(said)
        if wrong is None or is_wrong == wrong:
            if not wrong and rng.random() < 0.02:
                said, is_wrong = [rng.choice(TEXTS), *said[1:]], False
            return Case(words=tuple(said), is_wrong=is_wrong, config=rng.choice(CONFIGS))


def is_number(item: click.Option) -> bool:
    """Whether an option takes a number, by click's definition of it."""
    return isinstance(item.type, click.types.IntParamType | click.types.FloatParamType) and not item.is_flag


def _option(rng: random.Random, item: click.Option, calm: float, *, must: bool) -> tuple[list[str], bool]:
    """Return the words of an option, and whether its value is a number that cannot be."""
    flag, is_wrong = rng.choice([*item.opts, *item.secondary_opts]), False
    if item.is_flag:
        return [flag if rng.random() < 0.95 else f"{flag}=x"], False
    if is_number(item):
        bad = NOT_WHOLE if isinstance(item.type, click.types.IntParamType) else NO_NUMBER
        low = getattr(item.type, "min", None)
        beyond = [str(low - 1)] if low is not None and low < 1e9 else []
        is_wrong = must or rng.random() > calm
        value = rng.choice([*bad, *beyond] if is_wrong else NUMBERS)
    elif isinstance(item.type, click.Choice):
        value = str(rng.choice(item.type.choices if rng.random() < calm else TEXTS))
    else:
        value = rng.choice(MEANT.get(item.name or "", TEXTS) if rng.random() < calm else TEXTS)
    if flag.startswith("--") and rng.random() < 0.5:
        return [f"{flag}={value}"], is_wrong
    return [flag, value], is_wrong and flag != "--web"  # what follows that one may be a run


def _argument(rng: random.Random, item: click.Argument, calm: float) -> list[str]:
    known = MEANT.get(item.name or "", ("empty",))
    values = [rng.choice(known if rng.random() < calm else TEXTS) for _ in range(3)]
    return values[: rng.randint(item.required, 2 if item.nargs == -1 else 1)]


class Guard:
    """Stops whatever would start a process or a conversation, while it is armed."""

    def __init__(self) -> None:
        self.armed = False
        self.seen = ""
        sys.addaudithook(self._hook)  # for good: the interpreter has no way to take one back

    def wait(self, _: float) -> None:
        """Stand for `time.sleep`: `watch --web` waits for a run that has not begun."""
        raise Reached("time.sleep")

    def _hook(self, event: str, _: tuple[Any, ...]) -> None:
        if self.armed and event in STARTS:
            self.seen = self.seen or event
            raise Reached(event)


def play(case: Case, guard: Guard) -> Ending:
    """Run a command line here, in the working directory, by the real `main`."""
    from unisono.cli.main import main

    Path("job.toml").write_text(case.config, errors="surrogatepass")
    ending = Ending()
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace"))
    arguments, began = sys.argv, time.monotonic()
    guard.seen, sys.argv = "", ["unisono", *case.words]
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        waits = mock.patch.object(time, "sleep", guard.wait)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), waits:
            guard.armed = True
            try:
                main()
            finally:
                guard.armed = False
    except SystemExit as error:
        ending.code = error.code if isinstance(error.code, int) else 1
    except Reached as error:
        ending.reached = str(error)
    except Hung:
        ending.error = f"still at work after {LIMIT_S:g} s"
    except BaseException:  # noqa: BLE001 - whatever it is, it is told
        ending.error = traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.argv = arguments
    ending.reached = ending.reached or guard.seen
    ending.seconds = time.monotonic() - began
    ending.out, ending.err = (stream.buffer.getvalue().decode(errors="replace") for stream in _flushed(out, err))
    return ending


def _flushed(*streams: Any) -> Iterator[Any]:
    for stream in streams:
        stream.flush()
        yield stream


def _give_up(*_: object) -> None:
    raise Hung


def judge(case: Case, ending: Ending) -> list[str]:
    """Return what is wrong with how a line ended."""
    wrong = []
    if ending.error:
        wrong.append(ending.error)
    if "Traceback" in ending.err or "Traceback" in ending.out:
        wrong.append("a traceback was printed")
    if case.is_wrong and (ending.reached or ending.code != 2):
        wrong.append(f"expected code 2, got {ending.code} {ending.reached}")
    if ending.code is not None and ending.code not in CODES:
        wrong.append(f"expected a code of {CODES}, got {ending.code}")
    if ending.code == 2:
        said = [line for line in ending.err.split("\n") if line]
        messages = [line for line in said if line.startswith(("unisono: ", "unisono "))]
        # One message; what stands before it is the verb's progress.
        typed = sum(word.count("\n") for word in case.words)  # a name may hold line breaks
        # Without their recipe, or recipe or script, verbs list the recipes, a line each.
        listed = sum(line.startswith("  ") for line in said) if "Missing argument 'RECIPE" in ending.err else 0
        if len(messages) != 1 or len(said) > said.index(messages[0]) + 1 + typed + listed:
            wrong.append(f"expected one line of error, got {len(said)}")
        if any(len(line) > LONGEST_LINE for line in said):
            wrong.append(f"expected lines of at most {LONGEST_LINE} characters, got {max(map(len, said)):,}")
    if any(ord(char) < 32 and char not in "\n\t" for char in ending.err):
        wrong.append("control characters were printed")
    if ending.code == 0 and "--json" in case.words and not {*HELP, "--version"} & set(case.words):
        try:
            json.loads(ending.out, parse_constant=_refuse)
        except ValueError as error:
            wrong.append(f"no JSON: {error}")
    return wrong


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def prepare(place: Path) -> None:
    """Put what command lines may name into a directory."""
    (place / "script.py").write_text("print('hello')\n")
    (place / "data.csv").write_text("text,label\n" + "".join(f"a word {i},{i % 2}\n" for i in range(40)))
    (place / "damaged.json").write_text('{"kind": "unisono forecast", "version": NaN')
    (place / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    (place / "empty").mkdir()
    (place / "folder" / "a").mkdir(parents=True)
    (place / "folder" / "a" / "1.txt").write_text("one")


@dataclass(kw_only=True)
class Sweep:
    """What came of many cases."""

    cases: int = 0
    wrong: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    slowest: tuple[float, str] = (0.0, "")
    failures: list[tuple[int, Case, Ending, list[str]]] = field(default_factory=list)


def sweep(
    seed: int, count: int, place: Path, *, wrong: bool | None = None, first: int = 0, only: str | None = None
) -> Sweep:
    """Run `count` cases of a seed in a directory of their own, and return what came of them.

    Args:
        seed: With the case's number, the only source of chance.
        count: Number of cases.
        place: An empty directory.
        wrong: As in `draw`.
        first: Number of the first case.
        only: A verb; None draws from all.
    """
    guard, found = Guard(), Sweep()
    known = [(path, command) for path, command in commands() if only in (None, path[0])]
    prepare(place)
    home = Path.cwd()
    kept = dict(os.environ)
    for name in [
        name for name in os.environ if re.match(r"RANK|WORLD_SIZE|MASTER_|UNISONO_|SLURM_|OMPI_|LOCAL_", name)
    ]:
        del os.environ[name]
    os.environ |= {"XDG_CACHE_HOME": str(place / "cache"), "HOME": str(place)}
    began = time.monotonic()
    try:
        for number in range(first, first + count):
            os.chdir(place)
            case = draw(random.Random(f"{seed} {number}"), known, wrong=wrong)
            ending = play(case, guard)
            found.cases, found.wrong = found.cases + 1, found.wrong + case.is_wrong
            found.endings["about to start" if ending.reached else f"code {ending.code}"] += 1
            found.slowest = max(found.slowest, (ending.seconds, str(case)))
            if complaints := judge(case, ending):
                found.failures.append((number, case, ending, complaints))
    finally:
        os.chdir(home)
        os.environ.clear()
        os.environ.update(kept)
    found.seconds = time.monotonic() - began
    return found


def describe(found: Sweep) -> str:
    """Return failures, then counts, as lines."""
    lines = []
    for number, case, ending, complaints in found.failures:
        told = "\n".join(complaints)[-3000:]
        lines.append(
            f"--- case {number}: unisono {case}\n{told}\ncode {ending.code} {ending.reached}\n{ending.err[-1500:]}"
        )
    endings = ", ".join(f"{name}: {count}" for name, count in sorted(found.endings.items()))
    lines.append(
        f"{found.cases} command lines, {found.wrong} with a number that cannot be; {endings}; "
        f"{len(found.failures)} failed; {found.seconds:.1f} s, the slowest {found.slowest[0]:.1f} s: {found.slowest[1]}"
    )
    return "\n".join(lines)


def main() -> None:
    """Run as many cases as asked for; exit code 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", metavar="VERB", help="draw from one verb")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="unisono-adversary-") as place:
        inner = Path(place) / "a" / "b" / "c"
        inner.mkdir(parents=True)
        found = sweep(asked.seed, asked.cases, inner, first=asked.first, only=asked.only)
    print(describe(found))
    raise SystemExit(bool(found.failures))


if __name__ == "__main__":
    main()
