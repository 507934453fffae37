"""The parts of a syntax tree that are asked for: calls, targets, the names that are read (pure)."""

import ast
from collections.abc import Iterable, Iterator


def all_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Return all calls in a tree."""
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def calls_of(node: ast.AST, method: str, least: int = 0) -> Iterator[ast.Call]:
    """Yield the calls of a method of that name with at least so many arguments."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and method_of(each) == method and len(each.args) >= least:
            yield each


def method_of(node: ast.AST) -> str:
    """Return the name of the method that a call calls, or an empty text."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def nodes_in(loop: ast.For) -> Iterator[ast.AST]:
    """Return what is in the body of a loop."""
    return (node for each in loop.body for node in ast.walk(each))


def below_if(node: ast.If) -> Iterator[ast.AST]:
    """Return what is under a condition, on either side."""
    return (inner for each in (*node.body, *node.orelse) for inner in ast.walk(each))


def all_targets(node: ast.AST) -> Iterable[ast.expr]:
    """Return what a statement gives values to."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) else []


def pairs_of(node: ast.For) -> list[tuple[ast.expr, ast.expr]]:
    """Return what an inner loop goes through, with the target for it: of ``zip`` each by itself."""
    if isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) == "zip" and isinstance(node.target, ast.Tuple):
        return [*zip(node.target.elts, node.iter.args, strict=False)]
    return [(node.target, node.iter)]


def root_of(node: ast.AST) -> str:
    """Return the name with which a chain of calls, attributes and parts begins."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def each_target(target: ast.expr) -> list[ast.expr]:
    """Return the targets in a target: of ``best, bad`` both."""
    return target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def base_of(target: ast.expr) -> str:
    """Return the name of a target, of a part of something that of the whole."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return ast.unparse(target)


def names_read(node: ast.AST) -> set[str]:
    """Return the names, and dotted ones, that an expression or statement holds."""
    return {ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute)}


def whole_names(node: ast.AST) -> Iterator[str]:
    """Yield the names in an expression, dotted ones whole: ``self.model``, not ``self``."""
    if isinstance(node, ast.Name | ast.Attribute):
        yield ast.unparse(node)
    else:
        for each in ast.iter_child_nodes(node):
            yield from whole_names(each)


def read_outside(function: ast.FunctionDef) -> set[str]:
    """Return the names that a function takes from outside."""
    own = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    stored = {each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return {name for each in function.body for name in names_read(each)} - own - stored
