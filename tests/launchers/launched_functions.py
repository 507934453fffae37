"""Functions that the tests launch: new processes must be able to import them."""

import os
from pathlib import Path


def leave_note(folder, text="", number=0):
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    Path(folder, f"note-{rank}").write_text(f"{rank}/{size} {text} {number}")


def take_all(**settings):
    """Take any keyword."""


def fail(folder):
    if os.environ["RANK"] == "1":
        raise ValueError("the worker's own words")


def wait_for(folder):
    import time

    name = f"note-{os.environ['RANK']}"
    Path(folder, f".{name}").write_text(str(os.getpid()))
    Path(folder, f".{name}").rename(Path(folder, name))  # whoever sees it finds the number in it
    time.sleep(60)


def decorated():
    return 1


original = decorated
decorated = staticmethod(decorated)


class Holder:
    def method(self):
        pass


class Found:
    def __init__(self, rank):
        self.rank = rank


class Unloadable:
    def __reduce__(self):
        return (__import__, ("no_module_of_this_name",))


def give(kind):
    rank = int(os.environ["RANK"])
    if kind == "object":
        return {"found": Found(rank), "ranks": [rank] * 2}
    if kind == "lambda":
        return lambda: rank
    if kind == "unloadable":
        return Unloadable()
    return None
