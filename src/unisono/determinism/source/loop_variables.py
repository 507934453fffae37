"""Variables that a program's own loop over steps carries from iteration to iteration, and trains with (pure).

In: a source. Out: names that an iteration of ``for batch in run.steps(...)`` makes of what the one before has left
(``k += 1``, ``ema = f(ema)``, ``if loss < best: best = loss``, an own generator, ``enumerate``, what ``zip`` and
``next(it)`` take from elsewhere; objects of a class of the file whose methods do so: ``tracker.update(loss)``; globals
and closures of its functions; attributes of a prepared model), and where they get into a step. A checkpoint does not
hold them: a resumed run is another one. What is only shown, logged or evaluated is of no interest. Names are followed
through assignments, conditions and functions of the file, without regard to their order; what is reached otherwise is
not seen.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from unisono.determinism.source.syntax import (
    all_calls,
    all_targets,
    base_of,
    below_if,
    calls_of,
    each_target,
    method_of,
    names_read,
    nodes_in,
    pairs_of,
    read_outside,
    root_of,
    whole_names,
)

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
    made: frozenset[str] = frozenset()  #: The names of what is made of it.
    is_prepared: bool = False  #: It is an attribute of something prepared: kept, if it is part of that one's state.


def loop_variables(tree: ast.Module) -> Iterator[LoopVariable]:
    """Yield the variables of each loop over steps, in the order of their lines."""
    kept, prepared = (
        {name for call in calls_of(tree, method) for each in call.args for name in whole_names(each)}
        for method in ("register", "prepare")
    )
    made = {
        ast.unparse(target): node.lineno
        for node in ast.walk(tree) if isinstance(node, ast.Assign) and _is_generator(node.value)
        for target in node.targets
    }  # fmt: skip
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For) and any(calls_of(loop.iter, "steps")):
            end = loop.end_lineno or loop.lineno
            begun = {name: line for name, line in made.items() if not loop.lineno <= line <= end}
            of_objects = _objects(tree, loop)
            of_functions = _functions(tree, loop)
            found = {**begun, **of_functions, **_carried(loop), **{name: of_objects[name][0] for name in of_objects}}
            carried = {name: line for name, line in found.items() if not _is_part(name, kept)}
            for name, line in sorted(carried.items(), key=lambda item: item[1]):
                is_prepared = _is_part(name, prepared)
                names = {*of_objects[name][1]} if name in of_objects else {name}
                reached = line if is_prepared else _reached(tree, loop, names, prepared)
                if reached is not None and not (is_prepared and name in prepared):
                    yield LoopVariable(name, line, reached, range(loop.lineno, end + 1), frozenset(names), is_prepared)


def _carried(loop: ast.For) -> dict[str, int]:
    """Return what an iteration makes of what the one before has left, by name, with the line."""
    bound = {name for node in ast.walk(loop) if isinstance(node, ast.For) for name in names_read(node.target)}
    fresh = {
        ast.unparse(target)
        for node in loop.body if isinstance(node, ast.Assign)
        for target in node.targets if ast.unparse(target) not in names_read(node.value)
    }  # fmt: skip
    found = _beside(loop) | {name: line for name, line in _taken(loop).items() if name not in bound}
    for node in nodes_in(loop):
        if isinstance(node, ast.AugAssign):
            names = {base_of(node.target)}
        elif isinstance(node, ast.Assign):
            names = {base_of(each) for target in node.targets for each in each_target(target)} & names_read(node.value)
        elif isinstance(node, ast.If) and not _asks_whether_there_is(node.test):
            names = names_read(node.test) & {each for inner in below_if(node) for each in _targets(inner)}
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
        for target, source in pairs_of(loop):
            if target is not loop.target and not any(calls_of(source, "steps")):
                found |= dict.fromkeys(names_read(target), loop.lineno)
    return found


def _taken(loop: ast.For) -> dict[str, int]:
    """Return the iterators, made outside of the loop, from which ``next(it)`` takes something."""
    made = {each for node in nodes_in(loop) for each in map(ast.unparse, all_targets(node))}
    return {
        each.id: call.lineno for call in all_calls(loop) if ast.unparse(call.func) == "next" for each in call.args[:1]
        if isinstance(each, ast.Name) and each.id not in made
    }  # fmt: skip


def _functions(tree: ast.Module, loop: ast.For) -> dict[str, int]:
    """Return globals that functions called in the loop make of what they were, and closures that do so, with lines."""
    found: dict[str, int] = {}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    calls = {call.func.id: call for call in all_calls(loop) if isinstance(call.func, ast.Name)}
    called = {name: call.lineno for name, call in calls.items()}
    for each in functions:
        if each.name in called:
            taken = {name for call in all_calls(each) if ast.unparse(call.func) == "next" and call.args
                     for name in names_read(call.args[0]) & read_outside(each)}  # fmt: skip
            found |= dict.fromkeys({*_shared_with(each, ast.Global), *taken}, called[each.name])
            given = dict(zip((one.arg for one in each.args.args), calls[each.name].args, strict=False))
            for owner, _, name in (one.partition(".") for one in _made_of_itself(each, given)):
                found[f"{ast.unparse(given[owner])}.{name}"] = called[each.name]
    makers = {outer.name for outer in functions for each in ast.walk(outer)
              if isinstance(each, ast.FunctionDef) and _shared_with(each, ast.Nonlocal)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and root_of(node.value) in makers:
            found |= {name: called[name] for name in map(ast.unparse, node.targets) if name in called}
    return found


def _shared_with(function: ast.FunctionDef, kind: type[ast.Global | ast.Nonlocal]) -> set[str]:
    """Return the names of an outer scope that a function makes of what they were: ``global G; G *= 0.9``."""
    body = [each for statement in function.body for each in ast.walk(statement)]
    named = {name for each in body if isinstance(each, kind) for name in each.names}
    written = {name for each in body for target in all_targets(each) for name in map(base_of, each_target(target))}
    grown = {base_of(each.target) for each in body if isinstance(each, ast.AugAssign)}
    read = {each.id for each in body if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    return named & written & (grown | read)


def _objects(tree: ast.Module, loop: ast.For) -> dict[str, tuple[int, set[str]]]:
    """Return objects of the file's classes with a method, called in the loop, that makes attributes of what they were.

    By the object's name: the line of the call, and the names of these attributes and of the methods that read them.
    """
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    inside = {*ast.walk(loop)}
    fresh = {ast.unparse(each) for node in inside for each in all_targets(node)}
    found = dict[str, tuple[int, set[str]]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node not in inside:
            kind = classes.get(ast.unparse(node.value.func))
            methods = [each for each in kind.body if isinstance(each, ast.FunctionDef)] if kind else []
            for target in {*map(ast.unparse, node.targets)} - fresh:
                for call, method in ((call, each) for each in methods for call in calls_of(loop, each.name)):
                    if ast.unparse(call.func) == f"{target}.{method.name}" and (carried := _made_of_itself(method)):
                        line, names = found.get(target, (call.lineno, set()))
                        reading = {f"self.{each.name}" for each in methods if carried & names_read(each)}
                        names |= {target + each.removeprefix("self") for each in carried | reading}
                        found[target] = line, names
    return found


def _made_of_itself(method: ast.FunctionDef, owners: Iterable[str] = ("self",)) -> set[str]:
    """Return the attributes of `owners` that a function sets, if it makes one of them of what there was."""
    body = [*ast.walk(method)]
    written = {
        each for node in body for target in all_targets(node) for each in map(base_of, each_target(target))
        if each.partition(".")[0] in owners and "." in each
    }  # fmt: skip
    read = {ast.unparse(node) for node in body if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    grown = {base_of(node.target) for node in body if isinstance(node, ast.AugAssign)}
    return written if written & (read | grown) else set()


def _reached(tree: ast.Module, loop: ast.For, names: set[str], prepared: set[str]) -> int | None:
    """Return the first line of the loop in which one of `names`, or what is made of it, gets into the training.

    What is made of them is added to `names`.
    """
    before = 0
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    while len(names) > before:
        before = len(names)
        names |= {each.name for each in functions if names & read_outside(each)}
        for node in nodes_in(loop):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
                if (
                    node.value is not None
                    and names & names_read(node.value)
                    and not any(calls_of(node.value, "step", 2))
                ):
                    names |= set(_targets(node))
            elif isinstance(node, ast.For):
                names |= {
                    each
                    for target, source in pairs_of(node)
                    if names & names_read(source)
                    for each in names_read(target)
                }
            elif isinstance(node, ast.If) and names & names_read(node.test):
                names |= {each for inner in below_if(node) for each in _targets(inner)}
    given = {name for call in calls_of(tree, "loader") for each in call.args for name in whole_names(each)}
    if any("." in name and _is_part(name, given) for name in names):  # a data set's own: what it yields changes with it
        return loop.lineno
    setting = {each.name for each in functions if each.name in names and _parts_set(each)}
    for call, each in ((call, each) for each in functions if each.name in setting for call in all_calls(loop)):
        if ast.unparse(call.func) == each.name:
            owners = dict(zip((one.arg for one in each.args.args), map(ast.unparse, call.args), strict=False))
            names |= {f"{owners[owner]}.{part}" for owner, part in _parts_set(each) if owner in owners}
    lines = [
        line for node in nodes_in(loop) for line in (*_reaches(node, names), *_sets(node, names, prepared, setting))
    ]
    return min(lines, default=None)


def _sets(node: ast.AST, names: set[str], prepared: set[str], setting: set[str]) -> Iterator[int]:
    """Yield a statement's line where one of `names` gets into an attribute of something prepared, or is given to it."""
    if isinstance(node, ast.Assign | ast.AugAssign) and names & names_read(node.value):
        owners = {ast.unparse(each.value) for each in all_targets(node) if isinstance(each, ast.Attribute)}
        if any(_is_part(owner, prepared) for owner in owners):
            yield node.lineno
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in setting:
        given = {name for each in node.args for name in whole_names(each)}
        yield from [node.lineno] if any(_is_part(name, prepared) for name in given) else []


def _parts_set(function: ast.FunctionDef) -> set[tuple[str, str]]:
    """Return the attributes that a function sets of what it is given: the parameter, and the attribute."""
    given = {each.arg for each in function.args.args}
    targets = (each for node in ast.walk(function) for each in all_targets(node) if isinstance(each, ast.Attribute))
    return {(owner, each.attr) for each in targets if (owner := ast.unparse(each.value)) in given}


def _reaches(node: ast.AST, names: set[str]) -> Iterator[int]:
    """Yield a statement's line where one of `names` decides there what is trained."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        is_step = node.func.attr == "step" and len(node.args) > 1
        given = [*node.args, *(word.value for word in node.keywords)]
        if (is_step or (node.func.attr in _WRITES and root_of(node) not in names)) and any(
            names & names_read(each) for each in given
        ):
            yield node.lineno
    elif isinstance(node, ast.Assign | ast.AugAssign):
        if any(_is_setting(target) for target in all_targets(node)) and names & names_read(node.value):
            yield node.lineno
    elif (
        isinstance(node, ast.If) and names & names_read(node.test) and any(_decides(inner) for inner in below_if(node))
    ):
        yield node.lineno


def _decides(node: ast.AST) -> bool:
    """Whether a statement under a condition changes what is trained, or ends it."""
    if isinstance(node, ast.Call):
        return method_of(node) in (*_WRITES, "stop") or _is_step(node)
    if isinstance(node, ast.Assign | ast.AugAssign):
        return any(_is_setting(target) for target in all_targets(node))
    return isinstance(node, ast.Break | ast.Return)


def _is_step(call: ast.Call) -> bool:
    return method_of(call) == "step" and len(call.args) > 1


def _is_setting(target: ast.expr) -> bool:
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return target.slice.value in _SETTINGS
    return isinstance(target, ast.Attribute) and target.attr in ("data", "grad", "requires_grad", "p")


def _is_generator(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in _GENERATORS


def _targets(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement gives values to, but those of parts: a log's entry makes no log of weights."""
    for target in all_targets(node):
        for each in each_target(target):
            if isinstance(each, ast.Name) or (isinstance(each, ast.Attribute) and not _is_setting(each)):
                yield ast.unparse(each)


def _written(node: ast.For) -> set[str]:
    """Return the names whose elements an inner loop writes to: ``for a, p in zip(average, ...): a.mul_(0.9)``."""
    written = {root_of(call) for call in ast.walk(node) if method_of(call) in _WRITES}
    found = set()
    for target, source in pairs_of(node):
        if isinstance(source, ast.Call) and method_of(source) in ("values", "items"):
            source = source.func.value if isinstance(source.func, ast.Attribute) else source  # noqa: PLW2901
        if isinstance(source, ast.Name) and written & names_read(target):
            found.add(source.id)
    return found


def _asks_whether_there_is(test: ast.expr) -> bool:
    """Whether a condition is that of something made when it is first needed: ``if table is None``."""
    if isinstance(test, ast.Compare):
        return any(isinstance(each, ast.Constant) and each.value is None for each in test.comparators)
    return isinstance(test, ast.UnaryOp)


def _is_part(name: str, kept: set[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in kept)
