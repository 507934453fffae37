"""Workers that were started together and never met: each of them has trained the whole by itself.

In: the modules of a worker that ends. Out: whether it made an optimizer and computed what can be differentiated, and
nothing in it or in the program's own files has to do with other ranks; such a program was meant for one worker. Must
not import torch.
"""

import re
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OTHERS = ("horovod", "mpi4py", "ray", "jax", "deepspeed")
_KNOWS_OF_RANKS = re.compile(rb"rank|world", re.IGNORECASE)
_INSTALLED = {"site-packages", "dist-packages"}
_MOST_BYTES = 1 << 20


def has_trained_alone() -> bool:
    """Whether this process has trained with torch, as a program that knows of no other process.

    In doubt it has not: a program may share out its work by itself, by the rank that it is told.
    """
    optim: Any = sys.modules.get("torch.optim.optimizer")
    if optim is None or not any(getattr(kind.step, "hooked", False) for kind in _kinds(optim.Optimizer)):
        return False  # torch marks the class of every optimizer that was made
    graph: Any = sys.modules.get("torch.autograd")
    if getattr(graph, "_get_sequence_nr", lambda: 0)() == 0:
        return False  # no loss was ever computed that could be differentiated: weights were made or loaded
    # Where there is, or has been, a process group, torch leaves its own hook for exceptions behind.
    groups: Any = sys.modules.get("torch.distributed.distributed_c10d")
    has_had_group = groups is not None and (
        groups.GroupMember.WORLD is not None or sys.excepthook.__module__ == "torch.distributed.distributed_c10d"
    )
    if any(name in sys.modules for name in _OTHERS) or has_had_group:
        return False
    return not any(_KNOWS_OF_RANKS.search(text) for text in _own_sources())


def _kinds(kind: Any) -> Iterator[Any]:
    for below in kind.__subclasses__():
        yield below
        yield from _kinds(below)


def _own_sources() -> Iterator[bytes]:
    """Yield the files of the program itself: what was imported and is neither Python's, nor ours, nor installed."""
    others = [Path(sysconfig.get_path("stdlib")), Path(__file__).parents[2]]
    modules = [each for each in list(sys.modules.values()) if issubclass(type(each), types.ModuleType)]
    for file in {str(found) for each in modules if (found := vars(each).get("__file__"))}:
        path = Path(file)
        is_installed = not _INSTALLED.isdisjoint(path.parts) or any(path.is_relative_to(folder) for folder in others)
        if path.suffix != ".py" or is_installed or not path.is_file():  # torch has modules that name no file
            continue
        try:
            with path.open("rb") as source:
                yield source.read(_MOST_BYTES)
        except OSError:
            yield b"rank"  # it cannot be asked: in doubt
