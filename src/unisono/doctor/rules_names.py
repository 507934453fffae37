"""Rules about what a run meets only after an hour: names that are not there, gradients that are never cleared (pure).

Each takes a `Source` and yields its mistakes; `NAME_RULES` lists them. Which names a scope knows is taken from
the compiler's own analysis (`symtable`): Python's notion, and none of ours.
"""

import ast
import builtins
import re
import symtable
from collections.abc import Iterator

from unisono.doctor.rules_placement import Mistake, Rule
from unisono.doctor.source import Source

_GIVEN = frozenset(dir(builtins)) | {
    "__file__", "__path__", "__cached__", "__annotations__", "__module__", "__qualname__", "__class__", "__classdict__",
    "__conditional_annotations__", "__builtins__", "WindowsError", "reveal_type",
}  # fmt: skip
# Names may come into being where no analysis sees them.
_MAKE_NAMES = ("exec", "eval", "globals", "locals", "vars", "__import__")
_CLEARED = re.compile(r"zero_grad|\.grad\s*=|\.grad\b.*\.zero_\(|set_to_none|zero_grads|functional_call")


def undefined_name(source: Source) -> Iterator[Mistake]:
    """A name that nothing in the script defines: a NameError, perhaps only after the first epoch."""
    if any(True for _ in source.calls(*_MAKE_NAMES)) or any(
        alias.name == "*" for node in source.nodes(ast.ImportFrom) for alias in node.names
    ):
        return
    tables = list(_tables(source.symbols))
    known = _GIVEN | {symbol.get_name() for symbol in source.symbols.get_symbols() if _is_bound(symbol)}
    known |= {
        symbol.get_name()
        for table in tables
        for symbol in table.get_symbols()
        if symbol.is_declared_global() and _is_bound(symbol)
    }
    for attempt in source.nodes(ast.Try):  # tried with a NameError in mind
        if any(handler.type is None or "NameError" in ast.unparse(handler.type) for handler in attempt.handlers):
            known |= {name.id for guarded in attempt.body for name in source.nodes(ast.Name, guarded)}
    missing: dict[str, int] = {}
    for table in tables:
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if symbol.is_referenced() and symbol.is_global() and not _is_bound(symbol) and name not in known:
                missing[name] = min(table.get_lineno(), missing.get(name, table.get_lineno()))
    for name, start in missing.items():
        places = [node.lineno for node in source.nodes(ast.Name) if node.id == name and isinstance(node.ctx, ast.Load)]
        line = next((line for line in places if line >= start), places[0] if places else start)
        told = f"{name} is not defined anywhere in the script: a NameError when the line is reached"
        hint = f"define or import {name} before; or is it the misspelling of another name?"
        yield Mistake(line, "fail", told, hint)


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for inner in table.get_children():
        yield from _tables(inner)


def _is_bound(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace() or symbol.is_parameter()


def missing_zero_grad(source: Source) -> Iterator[Mistake]:
    """Gradients that nobody clears: each step adds those of all steps before."""
    if _CLEARED.search(ast.unparse(source.tree)):
        return
    optimizers = {
        name
        for assign in source.nodes(ast.Assign)
        if isinstance(assign.value, ast.Call) and source.name(assign.value).startswith("torch.optim.")
        if not source.name(assign.value).startswith("torch.optim.lr_scheduler")
        for name in map(_last, assign.targets)
    }
    calls = [(call, call.func) for call in source.nodes(ast.Call) if isinstance(call.func, ast.Attribute)]
    steps = [call for call, called in calls if called.attr == "step" and _last(called.value) in optimizers]
    if not any(_is_repeated(source, call) for call in steps) or _is_handed_on(source, optimizers):
        return
    for call, called in calls:
        if called.attr == "backward" and not call.args:
            told = "zero_grad is never called: each step adds the gradients of all steps before"
            hint = "optimizer.zero_grad() at the beginning of each step."
            yield Mistake(call.lineno, "fail", told, hint)
            return


def _last(node: ast.expr) -> str:
    """Return the last name of an expression: ``optimizer`` of ``self.optimizer``."""
    return ast.unparse(node).rpartition(".")[2]


def _is_repeated(source: Source, node: ast.AST, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a node is in a loop of its function, or its function is called in one."""
    scope = source.scope(node)
    for outer in source.above(node):
        if outer is scope:
            break
        if isinstance(outer, ast.For | ast.While):
            return True
    if isinstance(scope, ast.Module) or scope.name in seen:
        return False
    uses = [call for call in source.nodes(ast.Call) if ast.unparse(call.func).rpartition(".")[2] == scope.name]
    return any(_is_repeated(source, use, seen | {scope.name}) for use in uses)


def _is_handed_on(source: Source, optimizers: set[str]) -> bool:
    """Whether an optimizer goes to a function of another file, which may clear the gradients."""
    own = {node.name for node in source.nodes(ast.FunctionDef)} | {node.name for node in source.nodes(ast.ClassDef)}
    for call in source.nodes(ast.Call):
        name = source.name(call)
        given = {_last(value) for value in (*call.args, *(word.value for word in call.keywords))}
        if given & optimizers and name not in own and not name.startswith(("torch.", "print", "isinstance", "len")):
            return True
    return False


NAME_RULES: tuple[Rule, ...] = (undefined_name, missing_zero_grad)
