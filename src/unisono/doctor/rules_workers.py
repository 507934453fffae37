"""Rules about programs for `unisono.Run` that train something else on another worker, or on more of them (pure)."""

import ast
import re
from collections.abc import Iterator

from unisono.determinism.source.code_names import WHO, rates_of_workers
from unisono.doctor.rules_placement import Mistake, Rule
from unisono.doctor.rules_runs import losses
from unisono.doctor.source import Source

_WHEN = re.compile(r"\btime\.(time|monotonic|perf_counter)(_ns)?\(\)|\bdatetime\.(now|utcnow|today)\(")


def loss_of_this_worker(source: Source) -> Iterator[Mistake]:
    """A loss that has the rank, the number of workers or the clock in it: another one on another worker."""
    for call, functions in losses(source):
        tests = {inner for function in functions for each in source.nodes(ast.If, function)
                 for inner in ast.walk(each.test)}  # fmt: skip
        values = [each for function in functions for each in source.nodes(ast.expr, function) if each not in tests]
        told = "the loss has the {} in it: replicas may be computed by any worker, and weights depend on which one"
        hint = "take what differs from batch.step or from the samples."
        for pattern, what in ((WHO, "worker's number or their count"), (_WHEN, "clock")):
            if any(_tells(source, each, pattern) for each in values):
                yield Mistake(call.lineno, "fail", told.format(what), hint)


def learning_rate_of_workers(source: Source) -> Iterator[Mistake]:
    """A learning rate that grows with the number of workers, as for DDP, whose batch does."""
    if source.imports("unisono"):
        for line in rates_of_workers(source.tree):
            told = "the learning rate depends on the number of workers, and with it the weights; the batch does not"
            yield Mistake(line, "warn", told, "leave the factor out: batch_size is that of all workers together.")


def _tells(source: Source, value: ast.AST, pattern: re.Pattern[str]) -> bool:
    """Whether an expression is what the pattern looks for, or a name for it."""
    if isinstance(value, ast.Name):
        return any(pattern.search(ast.unparse(each)) for each in source.values_of(value.id))
    is_one = isinstance(value, ast.Attribute | ast.Call | ast.Subscript)
    return is_one and pattern.search(ast.unparse(value)) is not None


WORKER_RULES: tuple[Rule, ...] = (loss_of_this_worker, learning_rate_of_workers)
