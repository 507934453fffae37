"""Words for who has mistyped a name: what was probably meant (no torch)."""

import difflib
import re
import sys
from collections.abc import Iterable

_CUTOFF = 0.55
# What is nearly as near as the nearest may be meant as well: dpp is ddp or dp.
_AS_NEAR = 5 / 6
_OTHER_WORDS = {
    "lr": ("learning-rate", "base-lr", "init-lr", "eta"),
    "batch-size": ("batch", "bs", "train-batch-size", "global-batch-size", "per-device-train-batch-size"),
    "epochs": ("num-epochs", "max-epochs", "num-train-epochs", "n-epochs"),
    "out": (
        "output",
        "output-dir",
        "save-dir",
        "logdir",
        "log-dir",
        "checkpoint-dir",
        "default-root-dir",
        "project-dir",
        "resume",
        "save",
        "save-path",
        "model-dir",
        "html",
    ),
    "clip-norm": ("max-grad-norm", "grad-clip", "clip-grad", "gradient-clip-val"),
    "workers": ("num-processes", "nproc-per-node", "nproc", "nprocs", "num-gpus", "world-size", "np"),
    "replicas": ("gradient-accumulation-steps", "accumulate-grad-batches", "accum-iter"),
    "precision": ("fp16", "amp", "mixed-precision", "autocast", "dtype"),
    "gpus": ("gpu", "device", "accelerator", "cuda", "gpu-ids"),
    "nnodes": ("num-machines", "num-nodes", "nodes"),
    "node-rank": ("machine-rank",),
    "master-addr": ("main-process-ip", "master-address"),
    "master-port": ("main-process-port",),
    "checkpoint": ("step", "ckpt", "ckpt-path", "which"),
    "loss": ("criterion", "loss-fn", "loss-function"),
    "test-set": ("val-set", "valid-set", "eval-dataset", "validation-data"),
    "train-set": ("train-dataset", "train-data"),
    "data": ("data-dir", "data-path", "dataset", "root"),
    "seed": ("random-seed", "manual-seed"),
    "recipe": ("task", "example"),
    "decay": ("momentum", "beta", "ema-decay"),
}
"""Options as other programs call them, by ours."""

ELSEWHERE = {
    "Accelerator": "from unisono.compat.accelerate import Accelerator",
    "Fabric": "from unisono.compat.fabric import Fabric",
    "LightningModule": "a plain nn.Module; unisono.Trainer(run, model, optimizer, loss=...) trains it",
    "ModelCheckpoint": "unisono.Run(out=..., checkpoints=unisono.CheckpointPolicy(keep=3, best='test_accuracy'))",
    "TrainingArguments": "the keywords of unisono.Run and of Trainer.fit",
    **{name: f"unisono.callbacks.{name}" for name in ("EarlyStopping", "LearningRateMonitor", "TensorBoard", "EMA")},
    **dict.fromkeys(("DDP", "DistributedDataParallel", "FSDP"), "unisono.Run(strategy=...), then run.prepare(...)"),
    **dict.fromkeys(("DataLoader", "prepare_data_loader"), "run.loader(dataset, batch_size=...)"),
    **dict.fromkeys(("seed_everything", "set_seed", "manual_seed"), "unisono.Run(seed=...)"),
    **dict.fromkeys(
        ("init_process_group", "init"),
        "unisono.Run() finds the other workers; `unisono run -n 4 script.py` starts them",
    ),
    **dict.fromkeys(("notebook_launcher", "spawn"), "unisono.launch(function, workers=2)"),
    **dict.fromkeys(("save", "save_checkpoint"), "unisono.Run(out=...) saves by itself"),
    **dict.fromkeys(("all_reduce", "barrier"), "unisono.collectives.all_reduce(tensor), run.transport.barrier()"),
    **dict.fromkeys(("rank", "world_size", "get_rank", "get_world_size"), "run.world, or unisono.World.current()"),
}
"""Names of other libraries' modules, each with what to write here."""


_OF_A_TENSOR = {
    "backward": "it has done backward and the update already. Hint: leave .backward() out",
    **dict.fromkeys(
        ("item", "detach", "cpu", "numpy", "mean", "clone", "requires_grad", "grad_fn", "data", "tolist"),
        "it is a number already. Hint: use it as it is, without .{name}",
    ),
}
"""What is asked of a loss in other libraries, and what to say where it is a float."""


_PAIR = "it is a pair. Hint: model, optimizer = run.prepare(model, optimizer)"
_JOINED = "Hint: leave init_process_group() out: Run() joins the workers, which `unisono run -n 4 script.py` starts"
_NO_GROUP = (
    "There is no process group where a run has one worker. Hint: run.world.rank, run.world.world_size, "
    "unisono.collectives.all_reduce(tensor) and run.transport.barrier() work with any number of workers"
)
_NO_GPU = (
    "torch finds no GPU here. Hint: leave .cuda() and .to('cuda') out: run.prepare() moves the model, and the run its "
    "micro-batches, to run.device; other tensors: .to(run.device)"
)
OF_SHAPES = (
    r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)",
    "Hint: nn.Linear({2}, {3}) was given {0} rows of {1} numbers. If each row is one sample: nn.Linear({1}, {3}); "
    "else flatten each sample before it: x.flatten(1).",
)
"""Torch's words for a layer that takes other shapes, and what to write, with the groups of the words."""

_OF_TORCH = (
    (r"not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs are available", _NO_GPU),
    (r"environment variable \w+ expected, but not set|initialize the default process group twice", _JOINED),
    (r"Default process group has not been initialized", _NO_GROUP),
    (r"must be a mapping, not Batch$", "Hint: run.step(batch, lambda micro: model(**micro).loss), with micro-batches"),
    (r"^'tuple' object is not callable", f"If this is what run.prepare() returned, {_PAIR}"),
    (r"^'Tensor' object is not callable", "Hint: a result has taken a function's name: value = loss(output, target)"),
    (r"have (?:the )?same dtype|expected scalar type", "Hint: inputs need the dtype of the weights: x.float()"),
    (OF_SHAPES[0], OF_SHAPES[1].removesuffix(".")),
)
"""By the words of an error that comes from elsewhere, what it means in a program that has a run."""

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")


def of_a_mistake(error: BaseException) -> str:
    """Return what an uncaught error from elsewhere means in a program that has a run; nothing where that is unknown.

    Such as that a float has no ``backward``, a tuple no ``parameters``, and this machine no GPU.
    """
    if any("Hint: " in note for note in getattr(error, "__notes__", ())):
        return ""
    if isinstance(error, AttributeError):
        if type(error.obj) is float and error.name in _OF_A_TENSOR:
            return f"If this is what run.step() returned, {_OF_A_TENSOR[error.name].format(name=error.name)}."
        if type(error.obj) is tuple and error.obj and hasattr(error.obj[0], error.name or ""):
            return f"If this is what run.prepare() returned, {_PAIR}."
        if type(error.obj).__name__ == "ExactSampler" and error.name == "set_epoch":
            return "Hint: leave set_epoch() out: run.steps() gives every epoch an order of its own."
    is_torchs = isinstance(error, AssertionError | RuntimeError | TypeError | ValueError)
    if not is_torchs or "unisono.train.run" not in sys.modules:
        return ""
    said = ((re.search(words, str(error)), means) for words, means in _OF_TORCH)
    found, groups = next(((means, match.groups()) for match, means in said if match), ("", ()))
    trace = error.__traceback__
    while found is _NO_GROUP and trace is not None:
        name = type(trace.tb_frame.f_locals.get("self")).__name__
        if name in _WRAPPERS:
            return f"Hint: leave {name}() out: model, optimizer = run.prepare(model, optimizer) takes the plain model."
        trace = trace.tb_next
    return found and f"{found.format(*groups)}."


OF_A_WORLD = {
    **dict.fromkeys(("is_main_process", "is_global_zero", "is_main", "is_rank_zero", "is_master"), "is_leader"),
    **dict.fromkeys(("num_processes", "nprocs", "num_workers", "num_replicas"), "world_size"),
    **dict.fromkeys(("process_index", "global_rank", "node_local_rank"), "rank"),
    **dict.fromkeys(("local_process_index", "local_id"), "local_rank"),
    "nnodes": "num_nodes",
}
"""Names of other libraries for what a `World` says, and ours."""


def instead_of_world(name: str, known: Iterable[str]) -> str:
    """Return `` Hint: ...`` for a name that a `World` does not have."""
    if name[:1] == "_":
        return ""
    ours = OF_A_WORLD.get(name, "")
    return f" Hint: world.{ours}." if ours else nearest(name, [each for each in known if each[:1] != "_"])


def nearest(name: str, known: Iterable[object]) -> str:
    """Return `` Hint: did you mean ...?`` for a name that is none of `known`; nothing where none is near."""
    near = near_names(name, [str(other) for other in known])
    return f" Hint: did you mean {' or '.join(map(repr, near))}?" if near else ""


def instead(name: str, known: Iterable[object]) -> str:
    """Return `` Hint: ...`` for a name that a module does not have: what stands in its place here, or the nearest."""
    return f" Hint: {ELSEWHERE[name]}." if name in ELSEWHERE else "" if name[:1] == "_" else nearest(name, known)


def nearest_options(flag: str, known: Iterable[str]) -> list[str]:
    """Return the options that were probably meant by one that is not known: spelled otherwise, or another's word.

    Example:
        >>> nearest_options("--learning_rate", ["--lr", "--seed"]), nearest_options("--sede", ["--lr", "--seed"])
        (['--lr'], ['--seed'])
    """
    options = [option[2:] for option in known if option.startswith("--")]
    word = flag.lstrip("-").replace("_", "-")
    meant = [ours for ours, others in _OTHER_WORDS.items() if word in others and ours in options]
    return [f"--{option}" for option in meant or near_names(word, options)]


def near_names(name: str, known: list[str]) -> list[str]:
    """Return the nearest names, at most three; of those, names of the same length first."""
    if same := [other for other in known if other.lower() == name.lower()]:
        return same
    near = difflib.get_close_matches(name, known, cutoff=_CUTOFF)
    how_near = {other: difflib.SequenceMatcher(None, other, name).ratio() for other in near}  # as difflib orders them
    chosen = [other for other in near if how_near[other] >= _AS_NEAR * how_near[near[0]] - 1e-9]
    return sorted(chosen, key=lambda other: len(other) != len(name))


VALUES = {
    **dict.fromkeys(("16", "16-mixed", "16-true", "float16", "half"), "fp16"),
    **dict.fromkeys(("bf16-mixed", "bf16-true", "bfloat16"), "bf16"),
    **dict.fromkeys(("32", "32-true", "float32", "no", "full"), "fp32"),
}
"""Values of options in other programs' words, and ours."""
