"""Keywords that a function does not have, each answered with what to write here (pure).

They come from other libraries' functions, are misspelt, or belong to another function of this one.
Values without a name that should have one are answered too.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from unisono.errors import ConfigError
from unisono.system.hints import nearest_options
from unisono.system.messages import show_own_lines
from unisono.system.words import counted

P = ParamSpec("P")
T = TypeVar("T")

_ORDER = (
    "the order follows from seed and epoch, each sample once an epoch, on any number of workers. Hint: leave it out; "
    "shuffle=False of run.loader keeps the data set's order, and torch.utils.data.Subset(dataset, indices) chooses "
    "samples."
)
_FORKED = "loader processes are forked, and live as long as run.steps(). Hint: leave it out."
_PER_WORKER = (
    "per_device_train_batch_size", "per_device_eval_batch_size", "per_device_batch_size", "per_gpu_batch_size",
    "micro_batch_size", "train_micro_batch_size_per_gpu",
)  # fmt: skip
ANSWERS = {
    **dict.fromkeys(
        _PER_WORKER,
        "Hint: batch_size= counts the samples of a step over all workers: 4 workers with 32 each are batch_size=128.",
    ),
    "collate_fn": "Hint: collate= is the same, from a list of samples to a micro-batch.",
    "sampler": _ORDER,
    "batch_sampler": _ORDER,
    "shuffle": "training shuffles, evaluation keeps the data set's order. Hint: run.loader(shuffle=False) and "
    "run.steps() for another training order.",
    "generator": "Run(seed=) decides all orders. Hint: leave it out.",
    "drop_last": "no sample is dropped, a last short batch counts as many samples as it has. Hint: leave it out, or "
    "last='drop' in training; last='join' adds the rest to the batch before.",
    "pin_memory": "the run moves micro-batches to its device itself. Hint: leave it out.",
    "pin_memory_device": "the run moves micro-batches to its device itself. Hint: leave it out.",
    "prefetch_factor": "Hint: prefetch= of run.loader is the same; elsewhere leave it out.",
    "persistent_workers": _FORKED,
    "multiprocessing_context": _FORKED,
    "timeout": _FORKED,
    "in_order": "batches always come in order. Hint: leave it out.",
    "worker_init_fn": "what is random in a sample is seeded by seed, epoch and sample, in every process. Hint: leave "
    "it out; what a process opens for itself belongs into the data set's __getitem__.",
    "train_dataloaders": "Hint: the data set itself: fit(train_set, batch_size=..., epochs=...).",
    "val_dataloaders": "Hint: the data set itself: fit(..., test_set=...).",
}
"""By keyword: those of torch's DataLoader, and of Lightning's ``fit``."""

_LAUNCHED = "Hint: the launcher decides it: `unisono run -n 4 script.py`, or unisono.launch(function, workers=4)."
_DETERMINED = "a run is deterministic by itself. Hint: leave it out."
_OPTIMIZERS = "Hint: the optimizer takes it: torch.optim.Adam(model.parameters(), lr=0.001)."
_ACCUMULATED = (
    "Hint: replicas= counts the micro-batches of a step over all workers, and batch_size= its samples: 4 micro-batches "
    "of 32 samples on each of 2 workers are Run(replicas=8) and batch_size=256."
)
_LOGGED = "Hint: callbacks.TensorBoard(), MLflow() or WandB() of a Trainer; run.record(name=value) in your own loop."
RUN_ANSWERS = {
    **dict.fromkeys(("devices", "num_nodes", "workers", "num_processes", "world_size", "nprocs"), _LAUNCHED),
    **dict.fromkeys(("deterministic", "benchmark", "use_seedable_sampler"), _DETERMINED),
    **dict.fromkeys(("log_with", "logger", "loggers", "report_to"), _LOGGED),
    **dict.fromkeys(("lr", "learning_rate", "weight_decay", "momentum", "betas"), _OPTIMIZERS),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches"), _ACCUMULATED),
    **dict.fromkeys(("model", "optimizer", "scheduler"), "Hint: model, optimizer = run.prepare(model, optimizer)."),
    **dict.fromkeys(
        ("max_epochs", "num_train_epochs", "epochs"), "Hint: run.steps(loader, epochs=...), or Trainer.fit(epochs=...)."
    ),
    **dict.fromkeys(
        ("batch_size", "train_batch_size", "train_dataset"),
        "Hint: run.loader(train_set, batch_size=64), or Trainer.fit(train_set, batch_size=64); it counts the samples "
        "of a step over all workers.",
    ),
    **dict.fromkeys(
        ("mixed_precision", "fp16", "bf16", "amp", "autocast", "dtype"), "Hint: precision='fp32', 'bf16' or 'fp16'."
    ),
    "accelerator": "GPUs are used where there are any. Hint: device='cpu' for the CPU.",
    "cpu": "Hint: device='cpu'.",
    "split_batches": "batch_size= of run.loader counts the samples of all workers, always. Hint: leave it out.",
    "backend": "Hint: transport='gloo' for sockets between the workers; else leave it out.",
    "find_unused_parameters": "the default strategy needs no such option. Hint: strategy=unisono.strategy('ddp', "
    "find_unused_parameters=True) with DDP; else leave it out.",
}
"""By keyword: those of accelerate's, Lightning's and transformers' settings, given to `Run`."""

_FITTED = "Hint: trainer.fit(train_set, epochs=..., batch_size=..., test_set=...)."
TRAINER_ANSWERS = {
    **dict.fromkeys(("max_epochs", "train_dataset", "eval_dataset", "args", "train_dataloaders"), _FITTED),
    **dict.fromkeys(("devices", "num_nodes", "strategy"), "Hint: Run(strategy=...), and `unisono run -n 4 script.py`."),
    **dict.fromkeys(
        ("logger", "log_with", "report_to"), "Hint: callbacks=[callbacks.TensorBoard()], MLflow() or WandB()."
    ),
    **dict.fromkeys(("default_root_dir", "output_dir"), "Hint: Run(out=...)."),
    **dict.fromkeys(
        ("optimizers", "tokenizer", "data_collator"), "Hint: Trainer(run, model, optimizer, loss=...); collate= of fit."
    ),
    **dict.fromkeys(("gradient_clip_val", "max_grad_norm"), "Hint: Run(clip_norm=...)."),
    **{
        name: RUN_ANSWERS[name]
        for name in (
            "accelerator",
            "lr",
            "learning_rate",
            "weight_decay",
            "gradient_accumulation_steps",
            "accumulate_grad_batches",
        )
    },
}
"""The same, given to `Trainer`."""

PART_ANSWERS = {
    "verbose": "Hint: leave it out.",
    "log_dir": "it writes into the run directory. Hint: Run(out='runs/mine').",
    **dict.fromkeys(
        ("task", "num_classes", "average", "dist_sync_on_step", "compute_on_cpu"),
        "Hint: leave it out; unisono.TorchMetric(metric) takes a metric of torchmetrics with all its settings.",
    ),
}
"""The same, given to a callback or a metric."""

POLICY_ANSWERS = {
    "monitor": "Hint: best='test_accuracy'.",
    "mode": "Hint: best_mode='max' or 'min'.",
    "verbose": "Hint: leave it out.",
    **dict.fromkeys(("save_top_k", "max_to_keep", "save_total_limit", "total_limit"), "Hint: keep=2: the newest two."),
    **dict.fromkeys(("dirpath", "filename", "save_last"), "Hint: Run(out='runs/mine'); the newest is always kept."),
    **dict.fromkeys(
        ("every_n_train_steps", "every_n_epochs", "save_steps", "save_strategy"),
        "Hint: Run(checkpoint_every=500): steps; left out: epochs.",
    ),
}
"""The same, given to `CheckpointPolicy`."""

_SETTINGS = {"Run": RUN_ANSWERS, "Trainer": TRAINER_ANSWERS, "CheckpointPolicy": POLICY_ANSWERS}


_MISSING = {
    "batch_size": "batch_size= counts the samples of one step, over all workers; before it comes the data set itself, "
    "of a DataLoader its .dataset: {example}.",
    "loss": "Trainer(run, model, optimizer, loss=torch.nn.CrossEntropyLoss()); it gets output and target.",
    "optimizer": "model and optimizer are given together, once: model, optimizer = run.prepare(model, optimizer); "
    "Trainer(run, model, optimizer, loss=...).",
    "part": "a name, and what is saved: run.register('schedule', scheduler).",
    "loader": "for batch in run.steps(run.loader(dataset, batch_size=64), epochs=1).",
    "loss_function": "run.step(batch, lambda micro: loss(model(micro.x), micro.y)); it does backward and update, too.",
    "metrics": "run.evaluate(test_set, lambda micro: (model(micro.x), micro.y), {'accuracy': unisono.Accuracy()}).",
}
"""What to write where an argument is missing that other libraries' functions do not need."""

_EXAMPLES = {
    "Run.loader": "run.loader(dataset, batch_size=64)",
    "Trainer.fit": "trainer.fit(dataset, epochs=1, batch_size=64)",
}

_FIRST = "seed", "replicas"

_TAKEN_BY: dict[str, list[str]] = {}  # by keyword: the functions that answer, and have it


def answers_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function answer keywords that it does not have: with `ANSWERS` where it loads data, else a `TypeError`.

    `Run` and `Trainer` answer with `RUN_ANSWERS` and `TRAINER_ANSWERS`.
    """
    known = inspect.signature(function).parameters
    name = function.__qualname__.removesuffix(".__init__").replace("RunState", "Run")
    is_init = function.__name__ == "__init__"
    answers = ANSWERS if "num_workers" in known else _SETTINGS.get(name, PART_ANSWERS if is_init else {})
    for each, parameter in known.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            _TAKEN_BY.setdefault(each, []).append(f"{name}()")

    placed = [each for each, parameter in known.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    named = [f"{each}=" for each in known if each not in placed]
    is_method, most = placed[:1] == ["self"], len(placed) if named else sys.maxsize
    names = known.keys()
    needed = [each for each, parameter in known.items() if parameter.default is parameter.empty]
    left = [frozenset(needed).difference(placed[:given]) for given in range(len(placed) + 1)]  # by how many are placed

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        called = type(args[0]).__name__ if is_init and args else name  # of `F1`, not of the base that has its __init__
        if len(args) > most:
            what, got = ", ".join(placed[is_method:]) or "nothing", counted(len(args) - is_method, "value")
            hint = _too_many(name, args[is_method:]) or f"name the others: {', '.join(named)}."
            raise TypeError(f"{called}() takes {what} without a name, got {got}. Hint: {hint}")
        wrong = [each for each in kwargs if each not in known]
        if wrong:
            ours = [each for each in known if each != "self"]
            told = [f"{each}={_sentence(answers[each]) if each in answers else meant(each, ours)}" for each in wrong]
            kind = ConfigError if answers.keys() & wrong else TypeError
            raise kind(f"{called}() has no " + "\nIt has no ".join(told))
        if missing := [each for each in needed if each not in kwargs and each not in placed[: len(args)]]:
            raise TypeError(f"{called}() needs {' and '.join(missing)}.{_what_to_give(name, missing)}")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            is_placed = len(args) <= most and len(args) < len(left)
            if not (is_placed and kwargs.keys() <= names and left[len(args)] <= kwargs.keys()):  # nearly never
                check(args, kwargs)
            return function(*args, **kwargs)
        except Exception as error:
            show_own_lines(error)
            raise

    return call


def _what_to_give(name: str, missing: list[str]) -> str:
    hint = next((_MISSING[each] for each in missing if each in _MISSING), "")
    example = _EXAMPLES.get(name, _EXAMPLES["Run.loader"])
    return hint and f" Hint: {hint.replace('{example}', example)}"


def _too_many(name: str, given: tuple[object, ...]) -> str:
    """Return what to write where several values were given in place of one data set; nothing where that is unknown."""
    if name == "Run" and len(given) <= len(_FIRST) and all(isinstance(each, int) for each in given):
        return f"unisono.Run({', '.join(f'{key}={value}' for key, value in zip(_FIRST, given, strict=False))})."
    if name == "Run.prepare":
        return "model, optimizer, scheduler = run.prepare(model, optimizer, scheduler); data goes into run.loader()."
    if len(given) > 1 and all(hasattr(each, "shape") for each in given):
        return "arrays are one data set: unisono.ArrayDataset(inputs, targets)."
    if len(given) > 1 and any(hasattr(each, "state_dict") for each in given):
        return "models are given before: run.prepare(model, optimizer), or Trainer(run, model, optimizer, ...)."
    return ""


def answers_init(kind: type[T]) -> type[T]:
    """Let a class answer keywords that its ``__init__`` does not have, unless it passes on whatever it is given."""
    kinds = {each.kind for each in inspect.signature(kind.__init__).parameters.values()}
    if not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        kind.__init__ = answers_keywords(kind.__init__)  # type: ignore[method-assign]
    return kind


class AnswersInit:
    """Base of callbacks and metrics: those of this package answer keywords that they do not have."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if cls.__module__.startswith("unisono.") and "__init__" in vars(cls):
            answers_init(cls)


def _sentence(answer: str) -> str:
    return f". {answer}" if answer.startswith("Hint: ") else f": {answer}"


def meant(name: str, known: Iterable[str]) -> str:
    """Return the rest of a sentence about a keyword that is none of `known`: what was meant, who has it, or all."""
    near = nearest_options(f"--{name}", [f"--{each.replace('_', '-')}" for each in known])
    if name in _TAKEN_BY:
        return f". Hint: it is a keyword of {', '.join(_TAKEN_BY[name])}."
    if near:
        return f". Hint: did you mean {' or '.join(each[2:].replace('-', '_') + '=' for each in near)}?"
    others = nearest_options(f"--{name}", [f"--{each.replace('_', '-')}" for each in _TAKEN_BY])
    if told := [f"{each}= of {', '.join(_TAKEN_BY[each])}" for each in (one[2:].replace("-", "_") for one in others)]:
        return f". Hint: did you mean {' or '.join(told)}?"
    return f"; it has {', '.join(known) or 'none'}."
