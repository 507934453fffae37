"""What the source around a loop says of other launches: told before a launch's first step.

Variables that the loop carries, which start over in a resumed run; a learning rate made of the number of workers.
"""

import ast
import linecache
from collections.abc import Collection, Iterator, Sequence
from types import FrameType
from typing import Any

from torch import nn

from unisono.determinism.source.code_names import rates_of_workers
from unisono.determinism.source.loop_variables import LoopVariable, loop_variables
from unisono.determinism.source.taken import Taken
from unisono.system.messages import is_ours
from unisono.train.kept_dict import KeptDict

_MOST_FRAMES = 4  # between the loop and us there may be another library's, as of a progress bar


def loop_carried(frame: FrameType | None, registered: Collection[Any]) -> list[LoopVariable]:
    """Return which variables start over in the loop which `frame`, or one around it, is in.

    Those of objects that are `registered` do not, whatever the source calls them, nor does what a prepared model saves.
    What stands under a condition that is known not to hold counts for nothing.
    """
    held = {id(each.kept if isinstance(each, KeptDict) else each) for each in registered}
    for outer in _outside(frame):
        lines = linecache.getlines(outer.f_code.co_filename, outer.f_globals)
        try:
            tree = Taken(outer).visit(ast.parse("".join(lines)))
            found = [each for each in loop_variables(tree) if outer.f_lineno in each.loop]
        except (SyntaxError, ValueError, RecursionError):  # no source, or none that can be read alone
            continue
        found = [each for each in found if id(_root(outer, each.name)) not in held]
        found = [each for each in found if not each.is_prepared or _is_setting(outer, tree, each.name)]
        if found:
            return found
    return []


def _is_setting(frame: FrameType, tree: ast.AST, name: str) -> bool:
    """Whether a name is a number of a module, which its class reads elsewhere in the file: no part of its state."""
    first, *others = name.split(".")
    owner, value = None, _root(frame, first)
    for each in others:
        owner, value = value, getattr(value, "__dict__", {}).get(each)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    read = {each.attr for kind in classes for each in ast.walk(kind) if isinstance(each, ast.Attribute)}
    return isinstance(owner, nn.Module) and type(value) in (int, float) and others[-1] in read


def describe_rates(frame: FrameType | None) -> str:
    """Return where around `frame` a learning rate is computed from the number of workers; empty where none is."""
    for outer in _outside(frame):
        lines = linecache.getlines(outer.f_code.co_filename, outer.f_globals)
        try:
            tree = ast.parse("".join(lines))
            found = next((line for line in rates_of_workers(tree) if _is_run(tree, line, outer)), 0)
        except (SyntaxError, ValueError, RecursionError):  # no source, or none that can be read alone
            continue
        if found:
            return (
                f"the learning rate in line {found} is computed from the number of workers, and so are the weights: "
                "another number trains other ones. Hint: leave the factor out; batch_size is that of all workers "
                "together, so that the rate is the same for any number."
            )
    return ""


def _is_run(tree: ast.AST, line: int, frame: FrameType) -> bool:
    """Whether a line is in no function, or in the one that a frame is in, or in one that this one names."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    around = [each for each in functions if each.lineno <= line <= (each.end_lineno or line)]
    names = frame.f_code.co_names
    return all(each.lineno <= frame.f_lineno <= (each.end_lineno or 0) or each.name in names for each in around)


def _root(frame: FrameType, name: str) -> Any:
    """Return the object that the first name of `name` (``state`` of ``state.best``) stands for, or None."""
    root = name.partition(".")[0].partition("[")[0]
    return frame.f_locals.get(root, frame.f_globals.get(root))


def _outside(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the first frames that are not of this package, the nearest first."""
    count = 0
    while frame is not None and count < _MOST_FRAMES:
        if not is_ours(frame.f_code.co_filename):
            count += 1
            yield frame
        frame = frame.f_back


def describe_loop_carried(found: Sequence[LoopVariable], *, is_resumed: bool) -> str:
    """Return in words that variables start over."""
    return _words(found, "with this launch" if is_resumed else "in a resumed run") if found else ""


def _words(found: Sequence[LoopVariable], when: str) -> str:
    names = ", ".join(f"`{each.name}` (line {each.line})" for each in found)
    lines = ", ".join(map(str, sorted({each.reached for each in found})))
    is_one, key = len(found) == 1, found[0].name.rpartition(".")[2].partition("[")[0]
    return (
        f"{names} {'is' if is_one else 'are'} carried from iteration to iteration by your own loop, and "
        f"{'decides' if is_one else 'decide'} in line {lines} what is trained. No checkpoint holds "
        f"{'it: it starts' if is_one else 'them: they start'} over {when}, so that the result depends on "
        f"where the run was interrupted. Hint: compute {'it' if is_one else 'them'} from batch.step or batch.epoch; "
        f"or keep {'it' if is_one else 'them'} in a dictionary, state[{key!r}], and before the loop "
        "run.register('state', state)."
    )
