"""A script's syntax tree with what the rules ask of it: whole names, places, conditions (pure)."""

import ast
import re
import symtable
import warnings
from collections.abc import Iterator
from typing import Any, TypeVar, final

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_Node = TypeVar("_Node", bound=ast.AST)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_RANK_WORDS = re.compile(r"(?:^|_)(?:rank|leader|master|chief)(?:$|_|\b)|is_(?:main|local_main)|is_zero", re.IGNORECASE)
_NOT_ADDRESSES = re.compile(r"addr|port|size", re.IGNORECASE)
# With these, only a comparison with 0 chooses a process: n_gpu and use_gpu say something else.
_NUMBER_WORDS = re.compile(r"gpu|gpu_?(id|idx|index)|device_?id|proc(ess)?_?(id|index)", re.IGNORECASE)


@final
class Source:
    """A parsed script.

    Raises:
        SyntaxError: It is none.
    """

    def __init__(self, text: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script; not ours to say
            compile(text, "script", "exec", dont_inherit=True)  # sees what parsing alone does not: return outside
            self.tree = ast.parse(text)
            self.symbols = symtable.symtable(text, "script", "exec")
        self.lines = text.replace("\r\n", "\n").split("\n")  # as Python counts: a form feed ends no line
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._found: dict[tuple[type[ast.AST], ast.AST], list[Any]] = {}  # what `nodes` has yielded
        self._imported = dict(self._imports())
        self._asked: set[str] = set()
        self._assigned: dict[str, list[ast.Assign | ast.AnnAssign]] = {}
        for assign in (node for node in ast.walk(self.tree) if isinstance(node, ast.Assign | ast.AnnAssign)):
            for name in target_names(assign):
                self._assigned.setdefault(name, []).append(assign)

    def nodes(self, kind: type[_Node], within: ast.AST | None = None) -> Iterator[_Node]:
        """Yield all nodes of a kind, in the order of the text."""
        asked = kind, within or self.tree
        if asked not in self._found:
            found = [node for node in ast.walk(asked[1]) if isinstance(node, kind)]
            found.sort(key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))
            self._found[asked] = found
        yield from self._found[asked]

    def name(self, node: ast.AST | None) -> str:
        """Return the dotted name of an expression with imports resolved, or an empty string: ``dist.barrier`` after
        ``import torch.distributed as dist`` is ``torch.distributed.barrier``. A call counts as what it calls.
        """
        if isinstance(node, ast.Call):
            return self.name(node.func)
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            left = self.name(node.value)
            return f"{left}.{node.attr}" if left else ""
        return ""

    def calls(self, *names: str, within: ast.AST | None = None) -> Iterator[ast.Call]:
        """Yield the calls of functions with these whole names."""
        yield from (call for call in self.nodes(ast.Call, within) if self.name(call) in names)

    def imports(self, module: str) -> bool:
        """Whether something of `module` is imported, or reached by attribute."""
        prefix = f"{module}."
        names = [*self._imported.values(), *(self.name(node) for node in self.nodes(ast.Attribute))]
        return any(name == module or name.startswith(prefix) for name in names)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around `node`, the nearest first."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def scope(self, node: ast.AST) -> Scope:
        """Return the function around `node`, or the module."""
        return next((found for found in self.above(node) if isinstance(found, _FUNCTIONS)), self.tree)

    def in_scope(self, kind: type[_Node], scope: Scope) -> Iterator[_Node]:
        """Yield the nodes of a kind that belong to a scope itself, not to a function inside it."""
        yield from (node for node in self.nodes(kind, scope) if node is not scope and self.scope(node) is scope)

    def rank_conditions(self, node: ast.AST) -> Iterator[tuple[ast.If, bool]]:
        """Yield each ``if`` around `node`, in its function, that asks for the rank; True: `node` is in its body."""
        inner = node
        for outer in self.above(node):
            if isinstance(outer, _FUNCTIONS):
                return
            if isinstance(outer, ast.If) and inner is not outer.test and self.asks_for_rank(outer.test):
                yield outer, inner in outer.body
            inner = outer

    def values_of(self, name: str) -> list[ast.expr]:
        """Return what is assigned to a name or attribute anywhere in the script, given as text."""
        return [assign.value for assign in self._assigned.get(name, []) if assign.value is not None]

    def asks_for_rank(self, test: ast.expr) -> bool:
        """Whether an expression differs from rank to rank, as far as names tell: ``rank == 0``, ``is_main_process()``.

        ``rank != -1``, ``rank >= 0`` and ``"RANK" in os.environ`` ask whether there are several processes at all. A
        name stands for what is assigned to it (``first = rank == 0``, or what only some ranks make), a function of
        the script for what it returns.
        """
        if isinstance(test, ast.BoolOp):
            return any(map(self.asks_for_rank, test.values))
        if isinstance(test, ast.UnaryOp):
            return self.asks_for_rank(test.operand)
        if isinstance(test, ast.Compare):
            return self._compares_rank(test)
        if self.names_rank(test):
            return True
        spelled = ast.unparse(test.func if isinstance(test, ast.Call) else test)
        if not isinstance(test, ast.Name | ast.Attribute | ast.Call) or spelled in self._asked:
            return False
        self._asked.add(spelled)  # a name may be defined by itself
        try:
            if isinstance(test, ast.Call):
                bodies = [node for node in self.nodes(ast.FunctionDef) if node.name == spelled]
                returned = [found.value for body in bodies for found in self.in_scope(ast.Return, body)]
                return any(self.asks_for_rank(value) for value in returned if value is not None)
            kinds = (ast.Compare, ast.BoolOp, ast.UnaryOp)
            tests = [value for value in self.values_of(spelled) if isinstance(value, kinds)]
            return self._is_made_by_some(spelled) or any(map(self.asks_for_rank, tests))
        finally:
            self._asked.discard(spelled)

    def _compares_rank(self, test: ast.Compare) -> bool:
        right, kind = test.comparators[0], test.ops[0]
        if any(_is_none(side) for side in test.comparators):
            return not self.names_rank(test.left) and self._is_made_by_some(ast.unparse(test.left))
        if isinstance(kind, ast.In | ast.NotIn):  # among some ranks: one of them is 0, or more than the mark for none
            listed = right.elts if isinstance(right, ast.Tuple | ast.List | ast.Set) else []
            return self.names_rank(test.left) and any(not _is_number(one, -1) for one in listed)
        if _is_number(right, -1) or (isinstance(kind, ast.GtE) and _is_number(right, 0)):
            return False
        if isinstance(kind, ast.Eq | ast.NotEq) and _is_number(right, 0):
            last = ast.unparse(test.left).rpartition(".")[2]
            if _NUMBER_WORDS.fullmatch(last):
                return True
        return any(self.names_rank(side) for side in (test.left, *test.comparators))

    def _is_made_by_some(self, name: str) -> bool:
        """Whether a name is None except where a condition asks for the rank: a saver that only rank 0 has."""
        mark = f"{name} is not None"
        made = [assign for assign in self._assigned.get(name, []) if assign.value and not _is_none(assign.value)]
        if not made or mark in self._asked:
            return False
        self._asked.add(mark)
        try:
            return all(
                any(in_body for _, in_body in self.rank_conditions(assign))
                or (isinstance(assign.value, ast.IfExp) and self.asks_for_rank(assign.value.test))
                for assign in made
            )
        finally:
            self._asked.discard(mark)

    def names_rank(self, node: ast.AST) -> bool:
        """Whether an expression has a name in it that stands for a rank."""
        names = [part.id for part in self.nodes(ast.Name, node)]
        names += [part.attr for part in self.nodes(ast.Attribute, node)]
        names += [part.value for part in self.nodes(ast.Constant, node) if isinstance(part.value, str)]
        return any(_RANK_WORDS.search(name) and not _NOT_ADDRESSES.search(name) for name in names)

    def inside_with(self, node: ast.AST, pattern: str) -> bool:
        """Whether a ``with`` around `node` has an expression that matches the regular expression."""
        return any(
            re.search(pattern, ast.unparse(item.context_expr))
            for outer in self.above(node)
            if isinstance(outer, ast.With | ast.AsyncWith)
            for item in outer.items
        )

    def is_silenced(self, line: int, rule: str) -> bool:
        """Whether the line ends in ``# unisono: ignore[rule]``."""
        found = re.search(r"#\s*unisono:\s*ignore\[([\w\-, ]+)\]", self.lines[line - 1])
        return found is not None and rule in re.split(r"[,\s]+", found.group(1))

    def _imports(self) -> Iterator[tuple[str, str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    yield (alias.asname, alias.name) if alias.asname else (top, top)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value given for a keyword."""
    return next((given.value for given in call.keywords if given.arg == name), None)


def is_true(node: ast.expr | None) -> bool:
    """Whether an expression is the constant True."""
    return isinstance(node, ast.Constant) and node.value is True


def target_names(node: ast.Assign | ast.AnnAssign) -> list[str]:
    """Return what an assignment assigns to, as text: ``model``, ``self.model``."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [ast.unparse(target) for target in targets]


def _is_number(node: ast.expr, value: int) -> bool:
    try:
        return bool(ast.literal_eval(node) == value)
    except (ValueError, TypeError):
        return False


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
