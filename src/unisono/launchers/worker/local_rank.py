"""Scripts written for ``torch.distributed.launch`` want their local rank as an option: find out, pass it.

That launcher passed ``--local_rank`` (older torch) or ``--local-rank`` (newer) to every script; a script that
declares one spelling fails on the other. Pure functions of the script's text. Must not import torch.
"""

import ast
from collections.abc import Sequence

_SPELLINGS = ("--local_rank", "--local-rank")
_DECLARING = frozenset({"add_argument", "option"})


def local_rank_flag(source: bytes) -> str | None:
    """Return the spelling of the local rank option that a script declares, None if it declares none.

    Counts only a string constant given to ``add_argument`` (argparse) or ``option`` (click, typer). With
    several, the first in the text wins.
    """
    if not any(spelling.encode() in source for spelling in _SPELLINGS):
        return None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        for argument in call.args if called in _DECLARING else ():
            if isinstance(argument, ast.Constant) and argument.value in _SPELLINGS:
                return str(argument.value)
    return None


def with_local_rank(source: bytes, args: Sequence[str], local_rank: int) -> list[str]:
    """Return the script's arguments, with the local rank in front if the script declares that option."""
    given = {argument.partition("=")[0] for argument in args}
    flag = local_rank_flag(source)
    if flag is None or given.intersection(_SPELLINGS):
        return list(args)
    return [f"{flag}={local_rank}", *args]
