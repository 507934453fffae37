"""Which branches of a source are taken, as far as that is known where a loop begins (pure, but for the values).

In: a syntax tree, and a frame with the values of its names. Out: the tree without what stands under conditions that
do not hold, and never will: of constants, of names that nothing in the loop gives another value, and of attributes and
entries of plain objects. Nothing is called: no property, no `__eq__` of the program's own.
"""

import ast
import dataclasses
from argparse import Namespace
from collections.abc import Callable
from types import CodeType, FrameType, ModuleType, SimpleNamespace
from typing import Any, final

from unisono.determinism.source.syntax import all_targets, each_target

_PLAIN = (bool, int, float, str, type(None))
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


class _Unknown(Exception):
    """Nothing is known of a value."""


@final
class Taken(ast.NodeTransformer):
    """Leaves out what stands under conditions that are known not to hold.

    Args:
        frame: That of the loop.
    """

    def __init__(self, frame: FrameType) -> None:
        self._globals, self._locals = frame.f_globals, frame.f_locals
        self._is_module = frame.f_code.co_name == "<module>"
        self._line, self._code = frame.f_lineno, frame.f_code
        self._moving = set[str]()
        self._own: list[set[str]] = []  # names of the functions around, but for the frame's own
        self._is_inside = self._is_module  # whether what is looked at sees the frame's own variables

    def visit_Module(self, node: ast.Module) -> ast.AST:
        """Note which names get another value, and go on."""
        for each in ast.walk(node):
            if isinstance(each, ast.Global | ast.Nonlocal):
                self._moving |= {*each.names}
            elif isinstance(each, ast.For | ast.While) and each.lineno <= self._line <= (each.end_lineno or 0):
                self._moving |= {name for inner in ast.walk(each) for name in _given(inner)}
            elif isinstance(each, ast.Attribute | ast.Subscript) and isinstance(each.ctx, ast.Store):
                self._moving.add(each.attr if isinstance(each, ast.Attribute) else ast.unparse(each))
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Go on inside a function, which has names of its own."""
        if _is_of(node, self._code):
            before, self._is_inside = self._is_inside, True
            self.generic_visit(node)
            self._is_inside = before
            return node
        return self._within(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        """See `visit_FunctionDef`."""
        return self._within(node)

    def visit_If(self, node: ast.If) -> Any:
        """Leave the branch out that is not taken."""
        try:
            taken = node.body if self._plain(node.test) else node.orelse
        except _Unknown:
            return self.generic_visit(node)
        return [found for each in taken for found in _listed(self.visit(each))] or ast.copy_location(ast.Pass(), node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """See `visit_If`."""
        try:
            taken = node.body if self._plain(node.test) else node.orelse
        except _Unknown:
            return self.generic_visit(node)
        found: ast.AST = self.visit(taken)
        return found

    def _within(self, node: ast.FunctionDef | ast.Lambda) -> ast.AST:
        own = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
        self._own.append(own | {name for each in ast.walk(node) for name in _given(each)})
        self.generic_visit(node)
        self._own.pop()
        return node

    def _value(self, node: ast.expr) -> Any:
        if ast.unparse(node) in self._moving:
            raise _Unknown
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._of_name(node.id)
        if isinstance(node, ast.Attribute | ast.Subscript):
            return self._of_part(node)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return tuple(self._plain(each) for each in node.elts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self._plain(node.operand)
        if isinstance(node, ast.BoolOp):
            return self._of_both(node)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._of_comparison(node.left, node.ops[0], node.comparators[0])
        raise _Unknown

    def _plain(self, node: ast.expr) -> Any:
        value = self._value(node)
        if type(value) not in _PLAIN:
            raise _Unknown
        return value

    def _of_name(self, name: str) -> Any:
        if any(name in own for own in self._own):
            raise _Unknown
        for names in (self._locals, self._globals) if self._is_inside else (self._globals,):
            if name in names:
                return names[name]
        raise _Unknown

    def _of_part(self, node: ast.Attribute | ast.Subscript) -> Any:
        owner = self._value(node.value)
        if isinstance(node, ast.Subscript):
            key = self._plain(node.slice)
            if type(owner) is dict and key in owner:
                return owner[key]
        elif _is_plain_object(owner) and node.attr not in self._moving and node.attr in (held := vars(owner)):
            return held[node.attr]
        raise _Unknown

    def _of_both(self, node: ast.BoolOp) -> bool:
        """Return whether all, or some, hold: one that is known may settle it."""
        settles, unknown = isinstance(node.op, ast.Or), False
        for each in node.values:
            try:
                if bool(self._plain(each)) is settles:
                    return settles
            except _Unknown:
                unknown = True
        if unknown:
            raise _Unknown
        return not settles

    def _of_comparison(self, left: ast.expr, how: ast.cmpop, right: ast.expr) -> bool:
        is_same = isinstance(how, ast.Is | ast.IsNot)
        first, second = (self._value if is_same else self._plain)(left), self._value(right)
        is_list = isinstance(how, ast.In | ast.NotIn) and type(second) in (tuple, list, str, dict, set, frozenset)
        if not (is_same or is_list or type(second) in _PLAIN):
            raise _Unknown
        try:
            return _COMPARED[type(how)](first, second)
        except TypeError:
            raise _Unknown from None


def _given(node: ast.AST) -> list[str]:
    """Return what a node gives a value to."""
    if isinstance(node, ast.For | ast.comprehension):
        return [each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)]
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        return [each.id for each in ast.walk(node.optional_vars) if isinstance(each, ast.Name)]
    return [ast.unparse(each) for target in all_targets(node) for each in each_target(target)]


def _is_of(node: ast.FunctionDef, code: CodeType) -> bool:
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return node.name == code.co_name and first == code.co_firstlineno


def _is_plain_object(value: Any) -> bool:
    """Whether attributes of an object are what lies in its dictionary."""
    is_plain = isinstance(value, Namespace | SimpleNamespace | ModuleType) or dataclasses.is_dataclass(value)
    return is_plain and not isinstance(value, type) and hasattr(value, "__dict__")


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [] if found is None else [found]
