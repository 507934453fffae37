"""Rules about who does what: ranks and devices, collectives, downloads, saved files (pure).

Each takes a `Source` and yields its mistakes; `PLACEMENT_RULES` lists them.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

from unisono.doctor.finding import Status
from unisono.doctor.source import Source, is_true, keyword

COLLECTIVES = frozenset(
    f"torch.distributed.{name}"
    for name in (
        "barrier", "monitored_barrier", "broadcast", "broadcast_object_list", "all_reduce", "reduce", "all_gather",
        "all_gather_object", "all_gather_into_tensor", "all_gather_single", "gather", "gather_object", "scatter",
        "scatter_object_list", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "all_to_all",
        "all_to_all_single", "new_group", "init_process_group",
    )
)  # fmt: skip
_GLOBAL_RANK = ("rank", "global_rank", "world_rank")
_NODE_RANK = ("node_rank", "machine_rank", "group_rank", "node_id", "nodeid")
_IN_MEMORY = ("io.BytesIO", "tempfile.TemporaryFile", "tempfile.NamedTemporaryFile", "tempfile.SpooledTemporaryFile")
_LAUNCHERS = ("unisono.launch", "unisono.run_ranks", "torch.multiprocessing.spawn")
_DOWNLOADERS = (
    "urllib.request.urlretrieve", "torch.hub.download_url_to_file", "torch.hub.load_state_dict_from_url",
    "torchvision.datasets.utils.download_url", "torchvision.datasets.utils.download_and_extract_archive",
    "gdown.download",
)  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class Mistake:
    """A place that breaks a rule."""

    line: int
    status: Status
    detail: str
    hint: str


Rule = Callable[[Source], Iterator[Mistake]]


def is_distributed(source: Source) -> bool:
    """Whether the script is meant for several processes."""
    modules = ("torch.distributed", "torch.nn.parallel.DistributedDataParallel", "unisono.Run")
    return any(map(source.imports, modules))


def collective_on_some_ranks(source: Source) -> Iterator[Mistake]:
    """A collective that only some ranks reach: the others wait until the time-out."""
    hint = "call it on all ranks, outside of the condition; only the printing or saving belongs inside."
    for call in source.calls(*COLLECTIVES):
        name = source.name(call)
        if keyword(call, "group") is not None:
            continue  # a group of some ranks may well be called by these alone
        for condition, in_body in source.rank_conditions(call):
            other = condition.orelse if in_body else condition.body
            is_matched = any(True for statement in other for _ in source.calls(name, within=statement))
            if not is_matched and not _is_paired(source, call, name):
                yield Mistake(
                    call.lineno, "fail",
                    f"{_short(name)} is called only where `{ast.unparse(condition.test)}` (line {condition.lineno}): "
                    "the other ranks never join, and all wait until the time-out", hint,
                )  # fmt: skip
                break
        else:
            yield from _after_leaving(source, call, hint)


def _after_leaving(source: Source, call: ast.Call, hint: str) -> Iterator[Mistake]:
    """A collective that some ranks miss because they have returned before it."""
    inner: ast.AST = call
    for outer in source.above(call):
        blocks = (getattr(outer, "body", []), getattr(outer, "orelse", []))
        for block in (block for block in blocks if isinstance(block, list) and inner in block):
            for before in block[: block.index(inner)]:
                leaves = isinstance(before, ast.If) and isinstance(before.body[-1], ast.Return)
                if leaves and not before.orelse and source.asks_for_rank(before.test):
                    yield Mistake(
                        call.lineno, "fail",
                        f"{_short(source.name(call))} comes after ranks with `{ast.unparse(before.test)}` returned "
                        f"(line {before.lineno}): the others wait until the time-out", hint,
                    )  # fmt: skip
                    return
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        inner = outer


def _is_paired(source: Source, call: ast.Call, name: str) -> bool:
    """Whether its function calls the same under another condition: "first rank 0, then the rest" is right."""
    tests = {
        ast.unparse(condition.test)
        for other in source.calls(name, within=source.scope(call))
        for condition, _ in source.rank_conditions(other)
    }
    return name == "torch.distributed.barrier" and len(tests) > 1


def rank_as_device(source: Source) -> Iterator[Mistake]:
    """The global rank as the number of a GPU: right on the first machine only."""
    hint = "use the local rank, int(os.environ['LOCAL_RANK']), which starts at 0 on each machine."
    proven = {
        name
        for assign in source.nodes(ast.Assign)
        if _is_global_rank(source, assign.value)
        for name in map(ast.unparse, assign.targets)
    }
    for call in source.nodes(ast.Call):
        for value in _devices(source, call):
            spelled = ast.unparse(value)
            if spelled.rpartition(".")[2].lower() in _NODE_RANK or _reads(value, "GROUP_RANK|NODE_RANK|SLURM_NODEID"):
                told = f"`{spelled}` names a GPU: it is the rank of the machine, the same for all its processes"
                yield Mistake(call.lineno, "fail", told, hint)
                continue
            is_proven = spelled in proven or _is_global_rank(source, value)
            if not is_proven and _is_spawned_index(source, call, spelled):
                continue
            if not is_proven and spelled.rpartition(".")[2] not in _GLOBAL_RANK:
                continue
            told = f"`{spelled}` names a GPU" + (": it is the rank among all machines" if is_proven else "")
            trap = "from the second machine on there is no such GPU" + ("" if is_proven else ", unless it is local")
            yield Mistake(call.lineno, "fail" if is_proven else "warn", f"{told}; {trap}", hint)


def _devices(source: Source, call: ast.Call) -> Iterator[ast.expr]:
    """Yield the expressions that a call takes for the number of a GPU."""
    name, attribute = source.name(call), call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name == "torch.cuda.set_device" or (attribute in ("cuda", "to") and name != "torch.cuda"):
        yield from (value for value in call.args[:1] if isinstance(value, ast.Name | ast.Attribute | ast.Call))
    if name == "torch.device" and len(call.args) > 1:
        yield call.args[1]
    listed = keyword(call, "device_ids")
    if isinstance(listed, ast.List | ast.Tuple):
        yield from listed.elts
    for text in call.args[:1]:
        if isinstance(text, ast.JoinedStr) and len(text.values) == 2 and isinstance(text.values[0], ast.Constant):
            value = text.values[1]
            if text.values[0].value == "cuda:" and isinstance(value, ast.FormattedValue):
                yield value.value


def _is_global_rank(source: Source, value: ast.AST) -> bool:
    is_asked = source.name(value) == "torch.distributed.get_rank"
    return is_asked or _reads(value, "RANK|SLURM_PROCID|OMPI_COMM_WORLD_RANK")


def _reads(value: ast.AST, variables: str) -> bool:
    """Whether an expression is one of these variables of the environment, and not a part of it."""
    text = ast.unparse(value)
    return bool(re.search(rf"""environ(\.get\(|\[)['"]({variables})['"]""", text) and not re.search(r"[%/]", text))


def _is_spawned_index(source: Source, call: ast.Call, name: str) -> bool:
    """Whether a name is the first parameter of a function that mp.spawn starts: the index on this machine."""
    scope = source.scope(call)
    if isinstance(scope, ast.Module) or not scope.args.args or scope.args.args[0].arg != name:
        return False
    spawned = [one.args[0] for one in source.calls("torch.multiprocessing.spawn") if one.args]
    return any(ast.unparse(function) == scope.name for function in spawned)


def local_rank_as_rank(source: Source) -> Iterator[Mistake]:
    """The local rank where the rank is meant: two machines then have two ranks 0."""
    for call in source.calls("torch.distributed.init_process_group"):
        value = keyword(call, "rank")
        if value is not None and re.search(r"local_?rank", ast.unparse(value), re.IGNORECASE):
            told = f"`rank={ast.unparse(value)}`: on two machines, two processes have it"
            hint = "leave rank and world_size out: the launcher's variables say them."
            yield Mistake(call.lineno, "fail", told, hint)
    for call in source.calls("torch.save"):
        for condition, in_body in source.rank_conditions(call):
            if in_body and re.search(r"local_?rank", ast.unparse(condition.test), re.IGNORECASE):
                yield Mistake(
                    call.lineno, "warn",
                    f"one process a machine saves (`{ast.unparse(condition.test)}`, line {condition.lineno}): in a "
                    "shared directory they write the same file",
                    "ask for the rank among all: dist.get_rank() == 0.",
                )  # fmt: skip
                break


def local_rank_option(source: Source) -> Iterator[Mistake]:
    """An option in one of the two spellings that launchers have passed."""
    for call in source.nodes(ast.Call):
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
            continue
        flags = {value.value for value in call.args if isinstance(value, ast.Constant)}
        declared = [flag for flag in ("--local_rank", "--local-rank") if flag in flags]
        if len(declared) == 1:
            yield Mistake(
                call.lineno, "warn", f"only {declared[0]} is understood; torch.distributed.launch passes "
                "--local-rank since torch 2.0 (before: --local_rank), torchrun passes neither",
                "read os.environ['LOCAL_RANK'], or declare both spellings.",
            )  # fmt: skip


def download_on_every_rank(source: Source) -> Iterator[Mistake]:
    """A download that all ranks begin at once, into one file."""
    for call in source.nodes(ast.Call):
        name = source.name(call)
        if not (is_true(keyword(call, "download")) or name in _DOWNLOADERS) or not is_distributed(source):
            continue
        if any(source.rank_conditions(call)) or source.inside_with(call, r"(?i)lock|first|rank"):
            continue
        told = f"{_short(name) or 'this'} downloads in every process, to one file at once"
        first = (
            "where run.world.is_leader, then run.transport.barrier()"
            if source.imports("unisono.Run")
            else ("where rank == 0, then dist.barrier()")
        )
        hint = f"download {first} on all, then open it with download=False."
        yield Mistake(call.lineno, "fail", told, hint)


def save_on_every_rank(source: Source) -> Iterator[Mistake]:
    """A file that all ranks write at once."""
    for call in source.calls("torch.save"):
        path = call.args[1] if len(call.args) > 1 else keyword(call, "f")
        if not is_distributed(source) or path is None or _is_own(source, call, path) or _is_guarded(source, call):
            continue
        told = f"every process writes {ast.unparse(path)}: a reader may find half a file"
        asked = "run.world.is_leader" if source.imports("unisono.Run") else "dist.get_rank() == 0"
        hint = f"save where {asked}, to a temporary name, then os.replace() it."
        yield Mistake(call.lineno, "warn", told, hint)


def _is_own(source: Source, call: ast.Call, path: ast.expr) -> bool:
    """Whether what is written to is a rank's own: a name with the rank in it, or memory."""
    spelled = ast.unparse(path)
    items = [item for outer in source.above(call) if isinstance(outer, ast.With) for item in outer.items]
    opened = [item.context_expr for item in items if item.optional_vars and ast.unparse(item.optional_vars) == spelled]
    meant = [path, *source.values_of(spelled), *opened]
    return any(source.names_rank(value) or source.name(value) in _IN_MEMORY for value in meant)


def _is_guarded(source: Source, node: ast.AST, seen: frozenset[str] = frozenset()) -> bool:
    """Whether only some ranks come to `node`: by a condition, an early return, a decorator, or because of all callers.

    What stands beside a call that starts the ranks is done before or after them, by one process. A function that is
    called from nowhere here is called from another file, which cannot be judged.
    """
    if any(source.rank_conditions(node)) or source.inside_with(node, r"(?i)rank|main_process|leader"):
        return True
    if any(isinstance(outer, ast.BoolOp) and source.asks_for_rank(outer) for outer in source.above(node)):
        return True
    scope = source.scope(node)
    for condition in source.in_scope(ast.If, scope):
        leaves = isinstance(condition.body[-1], ast.Return | ast.Continue | ast.Raise)
        if condition.lineno < getattr(node, "lineno", 0) and leaves and source.asks_for_rank(condition.test):
            return True
    if not seen and any(source.name(call) in _LAUNCHERS for call in source.in_scope(ast.Call, scope)):
        return True
    if isinstance(scope, ast.Module):
        return False
    if scope.name in seen or any(source.names_rank(mark) for mark in scope.decorator_list):
        return True
    named = [node for node in source.nodes(ast.expr) if isinstance(node, ast.Name | ast.Attribute)]
    named = [node for node in named if scope.name == (node.id if isinstance(node, ast.Name) else node.attr)]
    uses = [node for node in named if isinstance(node.ctx, ast.Load) and not source.name(node).startswith("torch.")]
    return all(_is_guarded(source, use, seen | {scope.name}) for use in uses)


def _short(name: str) -> str:
    return ".".join(name.split(".")[-2:]).replace("distributed.", "dist.")


PLACEMENT_RULES: tuple[Rule, ...] = (
    collective_on_some_ranks, rank_as_device, local_rank_as_rank, local_rank_option, download_on_every_rank,
    save_on_every_rank,
)  # fmt: skip
