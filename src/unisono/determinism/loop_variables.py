"""Variables that a program's own loop over steps carries from iteration to iteration, and trains with (pure).

In: a source. Out: names that an iteration of ``for batch in run.steps(...)`` makes of what the one before has left
(``k += 1``, ``ema = f(ema)``, an own generator, ``enumerate``), and where they get into a step. A checkpoint does not
hold them, so that a resumed run is another one. What is only shown, logged or evaluated is of no interest. Names are
followed through assignments, conditions and functions of the file, without regard to their order; what is reached
otherwise is not seen.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_GENERATORS = ("default_rng", "RandomState", "Random", "Generator")
_SETTINGS = ("lr", "momentum", "weight_decay", "betas")
_WRITES = (
    "copy_", "add_", "sub_", "mul_", "div_", "lerp_", "fill_", "set_", "load_state_dict", "requires_grad_", "train",
    "eval",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoopVariable:
    """A variable that a loop over steps carries from iteration to iteration."""

    name: str
    line: int  #: Where it is made of what it was.
    reached: int  #: The line in which it gets into a step, or ends the loop.
    loop: range  #: The lines of the loop.


def loop_variables(tree: ast.Module) -> Iterator[LoopVariable]:
    """Yield the variables of each loop over steps, in the order of their lines."""
    kept = {
        name for method in ("register", "prepare") for call in _calls(tree, method) for each in call.args
        for name in _whole(each)
    }  # fmt: skip
    made = {
        ast.unparse(target): node.lineno
        for node in ast.walk(tree) if isinstance(node, ast.Assign) and _is_generator(node.value)
        for target in node.targets
    }  # fmt: skip
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For) and any(_calls(loop.iter, "steps")):
            end = loop.end_lineno or loop.lineno
            begun = {name: line for name, line in made.items() if not loop.lineno <= line <= end}
            found = {**begun, **_carried(loop)}
            carried = {name: line for name, line in found.items() if not _is_part(name, kept)}
            for name, line in sorted(carried.items(), key=lambda item: item[1]):
                reached = _reached(tree, loop, name)
                if reached is not None:
                    yield LoopVariable(name, line, reached, range(loop.lineno, end + 1))


def _carried(loop: ast.For) -> dict[str, int]:
    """Return what an iteration makes of what the one before has left, by name, with the line."""
    bound = {name for node in ast.walk(loop) if isinstance(node, ast.For) for name in _read(node.target)}
    fresh = {
        ast.unparse(target)
        for node in loop.body if isinstance(node, ast.Assign)
        for target in node.targets if ast.unparse(target) not in _read(node.value)
    }  # fmt: skip
    found: dict[str, int] = {}
    if (
        isinstance(loop.iter, ast.Call)
        and ast.unparse(loop.iter.func) == "enumerate"
        and isinstance(loop.target, ast.Tuple)
    ):
        found[ast.unparse(loop.target.elts[0])] = loop.lineno
    for node in _body(loop):
        if isinstance(node, ast.AugAssign):
            names = {_base(node.target)}
        elif isinstance(node, ast.Assign):
            names = {_base(target) for target in node.targets} & _read(node.value)
        elif isinstance(node, ast.For):
            names = _written(node)
        else:
            continue
        for name in names - bound - fresh:
            found.setdefault(name, node.lineno)
    return found


def _reached(tree: ast.Module, loop: ast.For, name: str) -> int | None:
    """Return the first line of the loop in which a variable, or what is made of it, gets into the training."""
    names, before = {name}, 0
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    while len(names) > before:
        before = len(names)
        names |= {each.name for each in functions if names & _read_outside(each)}
        for node in _body(loop):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
                if node.value is not None and names & _read(node.value) and not any(_calls(node.value, "step", 2)):
                    names |= set(_targets(node))
            elif isinstance(node, ast.For):
                names |= {each for target, source in _pairs(node) if names & _read(source) for each in _read(target)}
            elif isinstance(node, ast.If) and names & _read(node.test):
                names |= {each for inner in _below(node) for each in _targets(inner)}
    return min((line for node in _body(loop) for line in _reaches(node, names)), default=None)


def _reaches(node: ast.AST, names: set[str]) -> Iterator[int]:
    """Yield a statement's line where one of `names` decides there what is trained."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        is_step = node.func.attr == "step" and len(node.args) > 1
        given = [*node.args, *(word.value for word in node.keywords)]
        if (is_step or (node.func.attr in _WRITES and _root(node) not in names)) and any(
            names & _read(each) for each in given
        ):
            yield node.lineno
    elif isinstance(node, ast.Assign | ast.AugAssign):
        if any(_is_setting(target) for target in _all_targets(node)) and names & _read(node.value):
            yield node.lineno
    elif isinstance(node, ast.If) and names & _read(node.test) and any(_decides(inner) for inner in _below(node)):
        yield node.lineno


def _decides(node: ast.AST) -> bool:
    """Whether a statement under a condition changes what is trained, or ends it."""
    if isinstance(node, ast.Call):
        return _method(node) in (*_WRITES, "stop") or _is_step(node)
    if isinstance(node, ast.Assign | ast.AugAssign):
        return any(_is_setting(target) for target in _all_targets(node))
    return isinstance(node, ast.Break | ast.Return)


def _is_step(call: ast.Call) -> bool:
    return _method(call) == "step" and len(call.args) > 1


def _is_setting(target: ast.expr) -> bool:
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return target.slice.value in _SETTINGS
    return isinstance(target, ast.Attribute) and target.attr in ("data", "grad", "requires_grad", "p")


def _is_generator(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in _GENERATORS


def _calls(node: ast.AST, method: str, least: int = 0) -> Iterator[ast.Call]:
    """Yield the calls of a method of that name with at least so many arguments."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and _method(each) == method and len(each.args) >= least:
            yield each


def _method(node: ast.AST) -> str:
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def _body(loop: ast.For) -> Iterator[ast.AST]:
    return (node for each in loop.body for node in ast.walk(each))


def _below(node: ast.If) -> Iterator[ast.AST]:
    return (inner for each in (*node.body, *node.orelse) for inner in ast.walk(each))


def _all_targets(node: ast.AST) -> Iterable[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) else []


def _targets(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement gives values to, but those of parts: a log's entry makes no log of weights."""
    for target in _all_targets(node):
        for each in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            if isinstance(each, ast.Name) or (isinstance(each, ast.Attribute) and not _is_setting(each)):
                yield ast.unparse(each)


def _pairs(node: ast.For) -> list[tuple[ast.expr, ast.expr]]:
    """Return what an inner loop goes through, with the target for it: of ``zip`` each by itself."""
    if isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) == "zip" and isinstance(node.target, ast.Tuple):
        return [*zip(node.target.elts, node.iter.args, strict=False)]
    return [(node.target, node.iter)]


def _written(node: ast.For) -> set[str]:
    """Return the names whose elements an inner loop writes to: ``for a, p in zip(average, ...): a.mul_(0.9)``."""
    written = {_root(call) for call in ast.walk(node) if _method(call) in _WRITES}
    found = set()
    for target, source in _pairs(node):
        if isinstance(source, ast.Call) and _method(source) in ("values", "items"):
            source = source.func.value if isinstance(source.func, ast.Attribute) else source  # noqa: PLW2901
        if isinstance(source, ast.Name) and written & _read(target):
            found.add(source.id)
    return found


def _root(node: ast.AST) -> str:
    """Return the name with which a chain of calls, attributes and parts begins."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _base(target: ast.expr) -> str:
    """Return the name of a target, of a part of something that of the whole."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return ast.unparse(target)


def _read(node: ast.AST) -> set[str]:
    """Return the names, and dotted ones, that an expression or statement holds."""
    return {ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute)}


def _whole(node: ast.AST) -> Iterator[str]:
    """Yield the names in an expression, dotted ones whole: ``self.model``, not ``self``."""
    if isinstance(node, ast.Name | ast.Attribute):
        yield ast.unparse(node)
    else:
        for each in ast.iter_child_nodes(node):
            yield from _whole(each)


def _is_part(name: str, kept: set[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in kept)


def _read_outside(function: ast.FunctionDef) -> set[str]:
    """Return the names that a function takes from outside."""
    own = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    stored = {each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return {name for each in function.body for name in _read(each)} - own - stored
