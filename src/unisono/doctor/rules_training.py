"""Rules about the training itself: order of the data, evaluation, saved weights, names that are leaving torch (pure).

Each takes a `Source` and yields its mistakes; `TRAINING_RULES` lists them.
"""

import ast
import re
from collections.abc import Iterator

from unisono.doctor.rules_placement import Mistake, Rule, is_distributed
from unisono.doctor.rules_runs import losses
from unisono.doctor.source import Scope, Source, is_true, keyword, target_names

DEPRECATED = {
    "torch.distributed.all_gather_into_tensor": "torch.distributed.all_gather_single (torch 2.13)",
    "torch.distributed.reduce_scatter_tensor": "torch.distributed.reduce_scatter_single (torch 2.13)",
    "torch.distributed.reduce_op": "torch.distributed.ReduceOp",
    "torch.distributed.checkpoint.save_state_dict": "torch.distributed.checkpoint.save",
    "torch.distributed.checkpoint.load_state_dict": "torch.distributed.checkpoint.load",
    "torch.distributed.launch": "torchrun, or `unisono run`",
    "torch.cuda.amp.autocast": "torch.amp.autocast('cuda')",
    "torch.cuda.amp.GradScaler": "torch.amp.GradScaler('cuda')",
    "torch.nn.utils.clip_grad_norm": "torch.nn.utils.clip_grad_norm_",
    "torchtext": "your own reading of the texts: torchtext is archived and does not load beside a recent torch",
}
"""Names on their way out, and what stands in for them."""

_DDP = ("torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel")
_WRAPPERS = (*_DDP, "torch.nn.DataParallel", "torch.nn.parallel.DataParallel")
_SAMPLERS = ("torch.utils.data.DistributedSampler", "torch.utils.data.distributed.DistributedSampler")
_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_NO_GRAD = r"no_grad|inference_mode|set_grad_enabled\(False\)"
_SEEDERS = {
    "random": ("random.seed",),
    "numpy": ("numpy.random.seed",),
    "torch": ("torch.manual_seed", "torch.random.manual_seed"),
}
_SHUFFLES = {
    "random.shuffle": "random",
    "random.sample": "random",
    "numpy.random.shuffle": "numpy",
    "numpy.random.permutation": "numpy",
    "torch.randperm": "torch",
    "torch.utils.data.random_split": "torch",
}


def missing_set_epoch(source: Source) -> Iterator[Mistake]:
    """A sampler that is never told the epoch: each epoch then has the order of the first."""
    calls = [call.func for call in source.nodes(ast.Call) if isinstance(call.func, ast.Attribute)]
    if any(called.attr == "set_epoch" for called in calls) or not any(map(_is_over_epochs, source.nodes(ast.For))):
        return
    for call in source.calls(*_SAMPLERS):
        shuffle = keyword(call, "shuffle")
        if not (isinstance(shuffle, ast.Constant) and shuffle.value is False):
            told = "set_epoch is never called: every epoch has the same order"
            hint = "call sampler.set_epoch(epoch) at the beginning of each epoch."
            yield Mistake(call.lineno, "fail", told, hint)


def _is_over_epochs(loop: ast.For) -> bool:
    """Whether a loop says so, or counts loops in which a backward pass is called."""
    if "epoch" in ast.unparse(loop.target) + ast.unparse(loop.iter):
        return True
    inner = [each for each in ast.walk(loop) if isinstance(each, ast.For) and each is not loop]
    called = {ast.unparse(call.func).rpartition(".")[2] for each in inner for call in ast.walk(each)
              if isinstance(call, ast.Call)}  # fmt: skip
    return ast.unparse(loop.iter).startswith("range(") and "backward" in called


def shuffle_and_sampler(source: Source) -> Iterator[Mistake]:
    """A loader with both, which torch refuses, or with neither where each rank should have a part of the data."""
    has_sampler = any(True for _ in source.calls(*_SAMPLERS)) or source.imports("unisono")
    for call in source.calls(*_LOADERS):
        if not is_true(keyword(call, "shuffle")):
            continue
        sampler = keyword(call, "sampler")
        if sampler is not None and ast.unparse(sampler) != "None":
            told = "DataLoader has both sampler and shuffle=True: torch raises ValueError"
            hint = "leave shuffle out; the sampler shuffles already."
            yield Mistake(call.lineno, "fail", told, hint)
        elif not has_sampler and any(True for _ in source.calls(*_DDP)):
            told = "the script uses DistributedDataParallel, but every process loads all of the data"
            hint = "DataLoader(..., sampler=DistributedSampler(dataset)), without shuffle."
            yield Mistake(call.lineno, "fail", told, hint)


def unseeded_shuffle(source: Source) -> Iterator[Mistake]:
    """An order drawn from a generator that nobody has seeded: it differs between processes and between runs."""
    text = ast.unparse(source.tree)
    if re.search(r"\b(seed_everything|set_seed|seed_all)\(", text):
        return
    keyed = {call for _, functions in losses(source) for each in functions for call in source.nodes(ast.Call, each)}
    for call in source.nodes(ast.Call):
        name = source.name(call)
        family = None if call in keyed else _SHUFFLES.get(name)
        if name == "numpy.random.default_rng" and not call.args and not call.keywords:
            family = "numpy.random.default_rng()"
        if family is None or keyword(call, "generator") is not None:
            continue
        if any(True for _ in source.calls(*_SEEDERS.get(family, ()))):
            continue
        trap = "splits and orders differ between processes" if is_distributed(source) else "no run can be repeated"
        told = f"{name} draws from a generator without a seed: {trap}"
        hint = "give it a generator of its own with a fixed seed, the same on all ranks."
        if call in keyed:  # a run refuses a generator that goes on from call to call
            hint = "in a loss function draw from numpy.random itself, which the run seeds for each step and replica."
        yield Mistake(call.lineno, "warn", told, hint)


def evaluation_with_gradients(source: Source) -> Iterator[Mistake]:
    """A model in evaluation mode whose forward passes record a graph that nobody uses."""
    for switch in source.nodes(ast.Call):
        if not (isinstance(switch.func, ast.Attribute) and switch.func.attr == "eval" and not switch.args):
            continue
        scope, model = source.scope(switch), ast.unparse(switch.func.value)
        ends = [call.lineno for call in source.in_scope(ast.Call, scope) if ast.unparse(call.func) == f"{model}.train"]
        until = min((line for line in ends if line > switch.lineno), default=float("inf"))
        calls = [call for call in source.in_scope(ast.Call, scope) if switch.lineno < call.lineno < until]
        forwards = [call for call in calls if ast.unparse(call.func) in (model, f"{model}.forward")]
        trains = any(isinstance(c.func, ast.Attribute) and c.func.attr in ("backward", "grad") for c in calls)
        if forwards and not trains and not _is_without_grad(source, scope, forwards[0]):
            told = f"{model} is evaluated (line {switch.lineno}) with gradients recorded: memory and time for nothing"
            hint = "put the loop under `with torch.inference_mode():`, or decorate the function with it."
            yield Mistake(forwards[0].lineno, "warn", told, hint)


def _is_without_grad(source: Source, scope: Scope, call: ast.Call) -> bool:
    functions = [outer for outer in (scope, *source.above(scope)) if isinstance(outer, ast.FunctionDef)]
    decorated = any(re.search(_NO_GRAD, ast.unparse(mark)) for outer in functions for mark in outer.decorator_list)
    switched = any(
        re.search(r"set_grad_enabled\(False\)", ast.unparse(other)) and other.lineno < call.lineno
        for other in source.nodes(ast.Call)
    )
    return decorated or switched or source.inside_with(call, _NO_GRAD)


def kept_graph(source: Source) -> Iterator[Mistake]:
    """A running loss that holds on to the graph of every step so far."""
    scopes: list[Scope] = [source.tree, *source.nodes(ast.FunctionDef)]
    for scope in scopes:
        trained = {
            ast.unparse(call.func.value): call.lineno
            for call in source.in_scope(ast.Call, scope)
            if isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
        }
        changes: list[ast.AugAssign | ast.Assign] = [*source.in_scope(ast.AugAssign, scope)]
        for node in [*changes, *source.in_scope(ast.Assign, scope)]:
            target = ast.unparse(node.target if isinstance(node, ast.AugAssign) else node.targets[0])
            names = {part.id for part in source.nodes(ast.Name, node.value) if _is_bare(source, part)}
            adds_up = isinstance(node, ast.AugAssign) or (isinstance(node.value, ast.BinOp) and target in names)
            looped = any(isinstance(outer, ast.For | ast.While) for outer in source.above(node))
            kept = names & set(trained) - {target}
            if adds_up and looped and kept and target not in trained:
                loss = kept.pop()
                told = f"{target} keeps the graph of every {loss}: memory grows with each step"
                hint = f"add {loss}.detach() (or .item(), which waits for the GPU)."
                yield Mistake(node.lineno, "warn", told, hint)


def _is_bare(source: Source, name: ast.Name) -> bool:
    """Whether a name stands for itself, not inside a call or before a dot: ``loss``, not ``loss.item()``."""
    above = source.above(name)
    return not any(isinstance(outer, ast.Call | ast.Attribute) for outer in above if isinstance(outer, ast.expr))


def module_prefix(source: Source) -> Iterator[Mistake]:
    """Weights saved from the wrapper: their names begin with ``module.``, and the plain model does not load them."""
    wrapped = [
        (source.scope(assign), name, assign.lineno)
        for assign in source.nodes(ast.Assign)
        if source.name(assign.value) in _WRAPPERS and isinstance(assign.value, ast.Call)
        for name in target_names(assign)
    ]
    if not any(True for _ in source.calls("torch.save")):
        return
    for call in source.nodes(ast.Call):
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "state_dict"):
            continue
        model, scope = ast.unparse(call.func.value), source.scope(call)
        if any((scope, model) == (where, name) and line < call.lineno for where, name, line in wrapped):
            told = f"{model}.state_dict() is the wrapper's: its keys begin with `module.`"
            hint = f"save {model}.module.state_dict(): it loads into the plain model, on any number of processes."
            yield Mistake(call.lineno, "warn", told, hint)


def load_without_map_location(source: Source) -> Iterator[Mistake]:
    """Every process loads to the GPU that saved."""
    if not is_distributed(source):
        return
    for call in source.calls("torch.load"):
        may_map = len(call.args) > 1 or any(word.arg in ("map_location", None) for word in call.keywords)
        if not may_map:
            told = "torch.load without map_location: all processes load to the GPU of the file"
            hint = "map_location='cpu'; load_state_dict copies to the model's own device."
            yield Mistake(call.lineno, "warn", told, hint)


def deprecated_name(source: Source) -> Iterator[Mistake]:
    """Names that recent versions warn about or have dropped, each once, and a wrapper that is not recommended."""
    seen = set()
    nodes = [node for node in source.nodes(ast.expr) if isinstance(node, ast.Name | ast.Attribute)]
    places = [(source.name(node), node.lineno) for node in nodes]
    places += [
        (f"{node.module}.{alias.name}", node.lineno)
        for node in source.nodes(ast.ImportFrom)
        if node.module and not node.level
        for alias in node.names
    ]
    places += [(alias.name, node.lineno) for node in source.nodes(ast.Import) for alias in node.names]
    for name, line in sorted(places, key=lambda place: place[1]):
        key = "torchtext" if name.partition(".")[0] == "torchtext" else name
        if key in DEPRECATED and key not in seen:
            seen.add(key)
            yield Mistake(line, "warn", f"{key} is deprecated", f"use {DEPRECATED[key]}.")
    for call in source.calls(*set(_WRAPPERS).difference(_DDP)):
        told = "DataParallel is one process for all GPUs: slower than one process for each"
        yield Mistake(call.lineno, "warn", told, "use DistributedDataParallel, or unisono.Run.")


TRAINING_RULES: tuple[Rule, ...] = (
    missing_set_epoch, shuffle_and_sampler, unseeded_shuffle, evaluation_with_gradients, kept_graph, module_prefix,
    load_without_map_location, deprecated_name,
)  # fmt: skip
