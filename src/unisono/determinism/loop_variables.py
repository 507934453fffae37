"""Variables that a program's own loop over steps carries from iteration to iteration, and trains with (pure).

In: a source. Out: names that an iteration of ``for batch in run.steps(...)`` makes of what the one before has left
(``k += 1``, ``ema = f(ema)``, ``if loss < best: best = loss``, an own generator, ``enumerate``, what ``zip`` and
``next(it)`` take from elsewhere; objects of a class of the file whose methods do so: ``tracker.update(loss)``; globals
and closures of its functions), and where they get into a step. A checkpoint does not hold them: a resumed run is
another one. What is only shown, logged or evaluated is of no interest. Names are followed through assignments,
conditions and functions of the file, without regard to their order; what is reached otherwise is not seen.
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
            of_objects = _objects(tree, loop)
            of_functions = _functions(tree, loop)
            found = {**begun, **of_functions, **_carried(loop), **{name: of_objects[name][0] for name in of_objects}}
            carried = {name: line for name, line in found.items() if not _is_part(name, kept)}
            for name, line in sorted(carried.items(), key=lambda item: item[1]):
                reached = _reached(tree, loop, of_objects[name][1] if name in of_objects else {name})
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
    found = _beside(loop) | {name: line for name, line in _taken(loop).items() if name not in bound}
    for node in _body(loop):
        if isinstance(node, ast.AugAssign):
            names = {_base(node.target)}
        elif isinstance(node, ast.Assign):
            names = {_base(each) for target in node.targets for each in _each_of(target)} & _read(node.value)
        elif isinstance(node, ast.If) and not _asks_whether_there_is(node.test):
            names = _read(node.test) & {each for inner in _below(node) for each in _targets(inner)}
        elif isinstance(node, ast.For):
            names = _written(node)
        else:
            continue
        for name in names - bound - fresh:
            found.setdefault(name, node.lineno)
    return found


def _beside(loop: ast.For) -> dict[str, int]:
    """Return what ``enumerate`` counts, and what ``zip`` takes from elsewhere, beside the steps."""
    found: dict[str, int] = {}
    if isinstance(loop.iter, ast.Call) and isinstance(loop.target, ast.Tuple):
        if ast.unparse(loop.iter.func) == "enumerate":
            found[ast.unparse(loop.target.elts[0])] = loop.lineno
        for target, source in _pairs(loop):
            if target is not loop.target and not any(_calls(source, "steps")):
                found |= dict.fromkeys(_read(target), loop.lineno)
    return found


def _taken(loop: ast.For) -> dict[str, int]:
    """Return the iterators, made outside of the loop, from which ``next(it)`` takes something."""
    made = {each for node in _body(loop) for each in map(ast.unparse, _all_targets(node))}
    return {
        each.id: call.lineno for call in _all_calls(loop) if ast.unparse(call.func) == "next" for each in call.args[:1]
        if isinstance(each, ast.Name) and each.id not in made
    }  # fmt: skip


def _functions(tree: ast.Module, loop: ast.For) -> dict[str, int]:
    """Return globals that functions called in the loop make of what they were, and closures that do so, with lines."""
    found: dict[str, int] = {}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    called = {call.func.id: call.lineno for call in _all_calls(loop) if isinstance(call.func, ast.Name)}
    for each in functions:
        if each.name in called:
            found |= dict.fromkeys(_shared_with(each, ast.Global), called[each.name])
    makers = {outer.name for outer in functions for each in ast.walk(outer)
              if isinstance(each, ast.FunctionDef) and _shared_with(each, ast.Nonlocal)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _root(node.value) in makers:
            found |= {name: called[name] for name in map(ast.unparse, node.targets) if name in called}
    return found


def _shared_with(function: ast.FunctionDef, kind: type[ast.Global | ast.Nonlocal]) -> set[str]:
    """Return the names of an outer scope that a function makes of what they were: ``global G; G *= 0.9``."""
    body = [each for statement in function.body for each in ast.walk(statement)]
    named = {name for each in body if isinstance(each, kind) for name in each.names}
    written = {name for each in body for target in _all_targets(each) for name in map(_base, _each_of(target))}
    grown = {_base(each.target) for each in body if isinstance(each, ast.AugAssign)}
    read = {each.id for each in body if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    return named & written & (grown | read)


def _objects(tree: ast.Module, loop: ast.For) -> dict[str, tuple[int, set[str]]]:
    """Return objects of the file's classes with a method, called in the loop, that makes attributes of what they were.

    By the object's name: the line of the call, and the names of these attributes and of the methods that read them.
    """
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    inside = {*ast.walk(loop)}
    fresh = {ast.unparse(each) for node in inside for each in _all_targets(node)}
    found = dict[str, tuple[int, set[str]]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node not in inside:
            kind = classes.get(ast.unparse(node.value.func))
            methods = [each for each in kind.body if isinstance(each, ast.FunctionDef)] if kind else []
            for target in {*map(ast.unparse, node.targets)} - fresh:
                for call, method in ((call, each) for each in methods for call in _calls(loop, each.name)):
                    if ast.unparse(call.func) == f"{target}.{method.name}" and (carried := _made_of_itself(method)):
                        line, names = found.get(target, (call.lineno, set()))
                        reading = {f"self.{each.name}" for each in methods if carried & _read(each)}
                        names |= {target + each.removeprefix("self") for each in carried | reading}
                        found[target] = line, names
    return found


def _made_of_itself(method: ast.FunctionDef) -> set[str]:
    """Return the attributes that a method sets, if it makes one of them of what there was."""
    body = [*ast.walk(method)]
    written = {
        each for node in body for target in _all_targets(node) for each in map(_base, _each_of(target))
        if each.startswith("self.")
    }  # fmt: skip
    read = {ast.unparse(node) for node in body if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    grown = {_base(node.target) for node in body if isinstance(node, ast.AugAssign)}
    return written if written & (read | grown) else set()


def _reached(tree: ast.Module, loop: ast.For, names: set[str]) -> int | None:
    """Return the first line of the loop in which one of `names`, or what is made of it, gets into the training."""
    names, before = {*names}, 0
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
    given = {name for call in _calls(tree, "loader") for each in call.args for name in _whole(each)}
    if any("." in name and _is_part(name, given) for name in names):  # a data set's own: what it yields changes with it
        return loop.lineno
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


def _all_calls(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


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
        for each in _each_of(target):
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


def _each_of(target: ast.expr) -> list[ast.expr]:
    """Return the targets in a target: of ``best, bad`` both."""
    return target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def _asks_whether_there_is(test: ast.expr) -> bool:
    """Whether a condition is that of something made when it is first needed: ``if table is None``."""
    if isinstance(test, ast.Compare):
        return any(isinstance(each, ast.Constant) and each.value is None for each in test.comparators)
    return isinstance(test, ast.UnaryOp)


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
