"""Rules about programs for `unisono.Run`: habits of other libraries that it answers only when it runs (pure).

Each takes a `Source` and yields its mistakes; `RUN_RULES` lists them. What a rule calls a run is whatever a method of
that name is called of: nothing else has ``steps(epochs=)``, or a ``step`` of two arguments.
"""

import ast
from collections.abc import Iterator

from unisono.determinism.source.loop_variables import loop_variables
from unisono.doctor.rules_placement import Mistake, Rule
from unisono.doctor.source import Source, keyword

_DONE = {
    "backward": "run.step() does backward itself",
    "zero_grad": "run.step() clears the gradients itself",
    "step": "run.step() makes the update itself",
}
_OF_TENSORS = ("backward", "item", "detach", "cpu")


def own_backward(source: Source) -> Iterator[Mistake]:
    """What run.step() does, done once more: in the loss function, or with the number that it returns."""
    for call in _steps(source):
        for function in functions_of(source, call.args[1]):
            yield from _inside(function, source)
        for used in _uses(source, call):
            what = "backward and update are done" if used.attr == "backward" else "it is a number already"
            told = f".{used.attr}() of what run.step() returned, a float: {what}"
            yield Mistake(used.lineno, "fail", told, f"leave .{used.attr}() out.")


def _steps(source: Source) -> Iterator[ast.Call]:
    """Yield the calls of ``run.step(batch, loss)``; an optimizer's have one argument at most."""
    if source.imports("unisono"):
        for call in source.nodes(ast.Call):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "step" and len(call.args) == 2:
                yield call


def functions_of(source: Source, loss: ast.expr) -> list[ast.Lambda | ast.FunctionDef]:
    """Return where an expression's function is written, if it is in this file."""
    if isinstance(loss, ast.Lambda):
        return [loss]
    return [each for each in source.nodes(ast.FunctionDef) if isinstance(loss, ast.Name) and each.name == loss.id]


def losses(source: Source) -> Iterator[tuple[ast.Call, list[ast.Lambda | ast.FunctionDef]]]:
    """Yield each call of ``run.step`` with its loss function, and those that this one calls."""
    for call in _steps(source):
        found = functions_of(source, call.args[1])
        inner = [each for function in found for each in source.nodes(ast.Call, function)]
        yield call, [*found, *(each for one in inner for each in functions_of(source, one.func) if each not in found)]


def _inside(function: ast.AST, source: Source) -> Iterator[Mistake]:
    """Yield what a loss function does that is the step's to do."""
    for call in source.nodes(ast.Call, function):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _DONE and not call.args:
            told = f"{ast.unparse(call.func)}() in a loss function of run.step(): {_DONE[call.func.attr]}"
            yield Mistake(call.lineno, "fail", told, "leave it out; the function returns the loss.")


def _uses(source: Source, step: ast.Call) -> Iterator[ast.Attribute]:
    """Yield what is asked of the number that a step returns, right there or by its name."""
    above = next(source.above(step), None)
    if isinstance(above, ast.Attribute) and above.attr in _OF_TENSORS:
        yield above
    if not isinstance(above, ast.Assign):
        return
    scope, names = source.scope(step), [ast.unparse(target) for target in above.targets]
    others = [
        each.lineno for name in names for each in source.in_scope(ast.Assign, scope)
        if each is not above and name in map(ast.unparse, each.targets)
    ]  # fmt: skip
    until = min((line for line in others if line > step.lineno), default=float("inf"))
    for used in source.in_scope(ast.Attribute, scope):
        if used.attr in _OF_TENSORS and ast.unparse(used.value) in names and step.lineno < used.lineno < until:
            yield used


def run_on_some_ranks(source: Source) -> Iterator[Mistake]:
    """What all workers do together, done by some: the others never come, and all wait."""
    if not source.imports("unisono"):
        return
    for call in source.nodes(ast.Call):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        words = {given.arg for given in call.keywords}
        is_meant = (
            (name == "step" and len(call.args) == 2)
            or (name in ("steps", "fit") and not words.isdisjoint(("epochs", "max_steps")))
            or (name == "evaluate" and len(call.args) > 1)
        )
        condition = next((found for found, _ in source.rank_conditions(call)), None) if is_meant else None
        if condition is not None:
            told = f"{ast.unparse(call.func)}() only where `{ast.unparse(condition.test)}` (line {condition.lineno})"
            hint = "call it on all workers; only printing and saving belong inside the condition."
            yield Mistake(call.lineno, "fail", f"{told}: the other workers never come, and all wait", hint)


def loop_over_epochs(source: Source) -> Iterator[Mistake]:
    """A loop around `run.steps` or `fit` that says the same end each time: only the first one trains."""
    if not source.imports("unisono"):
        return
    for call in source.nodes(ast.Call):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("steps", "fit"):
            continue
        end, owner = keyword(call, "epochs") or keyword(call, "max_steps"), ast.unparse(call.func.value)
        if not isinstance(end, ast.Constant) or end.value is None:
            continue
        for loop in (each for each in source.above(call) if isinstance(each, ast.For | ast.While)):
            if isinstance(loop, ast.For) and call in ast.walk(loop.iter):
                continue
            if not _is_made_within(source, loop, owner) and source.scope(loop) is source.scope(call):
                told = f"epochs= of {call.func.attr}() count from the run's beginning: all but the first do nothing"
                hint = f"one {call.func.attr}(..., epochs=10) without the loop around it (batch.epoch says which one)"
                yield Mistake(call.lineno, "fail", told, f"{hint}; or epochs=epoch + 1 in it.")
                break


def loop_variable(source: Source) -> Iterator[Mistake]:
    """What a loop over steps carries from iteration to iteration, and trains with: it starts over in a resumed run."""
    if source.imports("unisono"):
        for found in (each for each in loop_variables(source.tree) if not each.is_prepared):
            told = (
                f"`{found.name}` is carried from iteration to iteration by the loop, and decides in line "
                f"{found.reached} what is trained: it starts over when a run is resumed, or a worker joins"
            )
            hint = "compute it from batch.step; or keep it in a dictionary that run.register(name, dictionary) saves."
            yield Mistake(found.line, "warn", told, hint)


def _is_made_within(source: Source, loop: ast.AST, owner: str) -> bool:
    """Whether each turn of a loop has a run, or a trainer, of its own."""
    made = [ast.unparse(target) for each in source.nodes(ast.Assign, loop) for target in each.targets]
    made += [
        ast.unparse(item.optional_vars)
        for each in source.nodes(ast.With, loop) for item in each.items if item.optional_vars is not None
    ]  # fmt: skip
    return owner in made or "(" in owner


def softmax_and_cross_entropy(source: Source) -> Iterator[Mistake]:
    """Probabilities for a loss that wants the numbers before them: it trains, slowly and to less."""
    hint = "leave the softmax out of training: torch's cross_entropy has it inside; apply it to what you show."
    made = _made_as(source, "torch.nn.CrossEntropyLoss")
    for call in source.nodes(ast.Call):
        if _is_cross_entropy(source, call, made) and call.args:
            given = _origin(source, call.args[0])
            if _is_softmax(source, given):
                told = "cross_entropy is given a softmax's output: the softmax is applied twice"
                yield Mistake(call.lineno, "warn", told, hint)
            elif (line := _softmax_of_model(source, given)) is not None:
                told = f"the model's forward ends in a softmax (line {line}), and cross_entropy applies one more"
                yield Mistake(call.lineno, "warn", told, hint)
    if made or any(True for _ in source.calls("torch.nn.functional.cross_entropy", "torch.nn.CrossEntropyLoss")):
        for call in source.calls("torch.nn.Sequential"):
            if call.args and source.name(call.args[-1]) == "torch.nn.Softmax":
                told = "the model ends in a Softmax, and cross_entropy applies one more"
                yield Mistake(call.args[-1].lineno, "warn", told, hint)


def _made_as(source: Source, kind: str) -> set[str]:
    """Return the names of what is made as an instance of a class."""
    return {
        name for name in _assigned(source) if any(source.name(value) == kind for value in source.values_of(name))
    }  # fmt: skip


def _is_cross_entropy(source: Source, call: ast.Call, made: set[str]) -> bool:
    return source.name(call) == "torch.nn.functional.cross_entropy" or ast.unparse(call.func) in made


def _is_softmax(source: Source, value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and source.name(value).rpartition(".")[2] == "softmax"


def _origin(source: Source, value: ast.expr) -> ast.expr:
    """Return what a name was given in its own function or lambda's, if once; other expressions as they are."""
    if not isinstance(value, ast.Name):
        return value
    scope = source.scope(value)
    given = [
        each.value for each in source.in_scope(ast.Assign, scope) if value.id in map(ast.unparse, each.targets)
    ]  # fmt: skip
    return given[0] if len(given) == 1 else value


def _softmax_of_model(source: Source, value: ast.expr) -> int | None:
    """Return the line of the softmax that a module of this file ends in, if `value` is a call of one."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name | ast.Attribute)):
        return None
    kinds = {source.name(made) for made in source.values_of(ast.unparse(value.func)) if isinstance(made, ast.Call)}
    for kind in source.nodes(ast.ClassDef):
        for method in kind.body if kinds == {kind.name} else []:
            if isinstance(method, ast.FunctionDef) and method.name == "forward":
                returned = [each.value for each in source.in_scope(ast.Return, method) if each.value is not None]
                last = [_origin(source, each) for each in returned]
                if last and all(_is_softmax(source, each) for each in last):
                    return last[-1].lineno
    return None


def _assigned(source: Source) -> list[str]:
    return [ast.unparse(target) for each in source.nodes(ast.Assign) for target in each.targets]


def classes_for_accuracy(source: Source) -> Iterator[Mistake]:
    """Class numbers for `unisono.Accuracy`, which takes the outputs and finds the largest itself."""
    told = "unisono.Accuracy is given class numbers, and takes the model's outputs"
    hint = "leave argmax out: (model(micro.x), micro.y)."
    made = _made_as(source, "unisono.Accuracy")
    for call in source.nodes(ast.Call):
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if method == "update" and call.args and ast.unparse(call.func).rpartition(".")[0] in made:
            if _is_argmax(source, _origin(source, call.args[0])):
                yield Mistake(call.lineno, "fail", told, hint)
        elif method == "evaluate" and any(True for _ in source.calls("unisono.Accuracy", within=call)):
            predict = call.args[1] if len(call.args) > 1 else keyword(call, "predict")
            for function in functions_of(source, predict) if predict is not None else []:
                for value in _returned(source, function):
                    if isinstance(value, ast.Tuple) and _is_argmax(source, _origin(source, value.elts[0])):
                        yield Mistake(value.lineno, "fail", told, hint)


def _returned(source: Source, function: ast.Lambda | ast.FunctionDef) -> list[ast.expr]:
    if isinstance(function, ast.Lambda):
        return [function.body]
    return [each.value for each in source.in_scope(ast.Return, function) if each.value is not None]


def _is_argmax(source: Source, value: ast.expr) -> bool:
    if isinstance(value, ast.Subscript):  # max(1)[1]
        value = value.value if ast.unparse(value.slice) == "1" else value
        return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "max"
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "argmax"


def divided_loss(source: Source) -> Iterator[Mistake]:
    """A loss that is divided as for accumulation, in a step that takes the mean over the whole batch itself."""
    hint = "return the loss as it is: accumulation is a larger batch_size with more replicas."
    seen = set[ast.AST]()
    for _, functions in losses(source):
        for function in functions:
            for node, whole, number in _divisions(source, function):
                is_counted = isinstance(number, ast.Constant) and type(number.value) is int and number.value > 1
                is_loss = isinstance(whole, ast.Name) and "loss" in whole.id and not _is_sum(_origin(source, whole))
                is_meant = (is_counted and is_loss) or "accum" in ast.unparse(number).lower()
                if is_meant and node not in seen:
                    seen.add(node)
                    told = (
                        f"the loss is divided by {ast.unparse(number)}: run.step() takes the mean over the whole batch "
                        "itself, so gradients become that many times too small"
                    )
                    yield Mistake(node.lineno, "warn", told, hint)


def _divisions(
    source: Source, function: ast.Lambda | ast.FunctionDef
) -> Iterator[tuple[ast.stmt | ast.expr, ast.expr, ast.expr]]:
    """Yield where what a function returns is divided, what, and by what: also ``loss = loss / n`` and ``loss /= n``."""
    for value in _returned(source, function):
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
            yield value, value.left, value.right
    for each in source.nodes(ast.AugAssign, function):
        if isinstance(each.op, ast.Div):
            yield each, each.target, each.value
    for assign in source.nodes(ast.Assign, function):
        value = assign.value
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
            targets = [value.left for each in assign.targets if ast.unparse(each) == ast.unparse(value.left)]
            yield from ((assign, whole, value.right) for whole in targets)


def _is_sum(value: ast.expr) -> bool:
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)


def in_batch_negatives(source: Source) -> Iterator[Mistake]:
    """A loss that compares each sample with the others of its micro-batch: with other replicas it is another loss."""
    made = _made_as(source, "torch.nn.CrossEntropyLoss")
    for step, functions in losses(source):
        if keyword(step, "embed") is not None:
            continue
        for function in functions:
            numbered = {
                target.id for each in source.nodes(ast.Assign, function) if _is_numbers(source, each.value)
                for target in each.targets if isinstance(target, ast.Name)
            }  # fmt: skip
            for call in source.nodes(ast.Call, function):
                wanted = call.args[1] if len(call.args) > 1 else keyword(call, "target")
                is_own = _is_numbers(source, wanted) or (isinstance(wanted, ast.Name) and wanted.id in numbered)
                is_pairs = is_own and any(map(_is_transposed, source.nodes(ast.expr, function)))
                if is_pairs and _is_cross_entropy(source, call, made):
                    told = "each sample is compared with those of its micro-batch alone, batch_size / replicas of them"
                    hint = "run.step(batch, loss, embed=...) compares it with all of the batch, for any replicas."
                    yield Mistake(call.lineno, "warn", told, hint)
                    break


def _is_numbers(source: Source, value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and source.name(value) == "torch.arange"


def _is_transposed(value: ast.expr) -> bool:
    """Whether there is a product with a transposed matrix in it: ``a @ b.T``, also scaled or by ``torch.matmul``."""
    text = ast.unparse(value)
    is_product = any(words in text for words in (" @ ", "matmul(", "mm("))
    return is_product and any(words in text for words in (".T", ".t()", ".mT", "transpose("))


RUN_RULES: tuple[Rule, ...] = (
    own_backward, run_on_some_ranks, loop_over_epochs, loop_variable, softmax_and_cross_entropy, classes_for_accuracy,
    divided_loss, in_batch_negatives,
)  # fmt: skip
