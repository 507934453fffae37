"""Cases about options: a drawn command line ends with one message and code 2, or where a process would start."""

import random
import tempfile
from pathlib import Path

from adversary.found import check
from adversary.options import Case, Ending, describe, judge, sweep


def command_line(chance: random.Random, *, cheat: bool = False) -> str:
    """One command line of any verb; see `options`."""
    if cheat:  # a number that cannot be is taken
        case = Case(words=("run", "-n", "nan", "x.py"), is_wrong=True, config="")
        check(not judge(case, Ending(reached="os.fork")), f"{case} was taken")
    with tempfile.TemporaryDirectory() as folder:
        found = sweep(chance.randrange(2**31), 1, Path(folder))
    check(not found.failures, describe(found))
    return str(dict(found.endings))
