"""Words for who has mistyped a name: what was probably meant (no torch)."""

import difflib
from collections.abc import Iterable

_CUTOFF = 0.5
# What is nearly as near as the nearest may be meant as well: dpp is ddp or dp.
_AS_NEAR = 5 / 6
_OTHER_WORDS = {
    "lr": ("learning-rate", "base-lr", "init-lr", "eta"),
    "batch-size": ("batch", "bs", "train-batch-size", "global-batch-size", "per-device-train-batch-size"),
    "epochs": ("num-epochs", "max-epochs", "num-train-epochs", "n-epochs"),
    "out": ("output", "output-dir", "save-dir", "logdir", "log-dir", "checkpoint-dir", "default-root-dir", "resume"),
    "clip-norm": ("max-grad-norm", "grad-clip", "clip-grad", "gradient-clip-val"),
    "workers": ("num-processes", "nproc-per-node", "nproc", "nprocs", "num-gpus", "world-size", "np"),
    "replicas": ("gradient-accumulation-steps", "accumulate-grad-batches", "accum-iter"),
    "precision": ("fp16", "amp", "mixed-precision", "autocast", "dtype"),
    "gpus": ("gpu", "device", "accelerator", "cuda"),
    "checkpoint": ("step", "ckpt", "ckpt-path", "which"),
    "loss": ("criterion", "loss-fn", "loss-function"),
    "test-set": ("val-set", "valid-set", "eval-dataset", "validation-data"),
    "train-set": ("train-dataset", "train-data"),
    "data": ("data-dir", "data-path", "dataset", "root"),
    "seed": ("random-seed", "manual-seed"),
    "recipe": ("task", "example"),
}
"""Options as other programs call them, by ours."""


def nearest(name: str, known: Iterable[object]) -> str:
    """Return `` Hint: did you mean ...?`` for a name that is none of `known`; nothing where none is near."""
    near = _near(name, [str(other) for other in known])
    return f" Hint: did you mean {' or '.join(map(repr, near))}?" if near else ""


def nearest_options(flag: str, known: Iterable[str]) -> list[str]:
    """Return the options that were probably meant by one that is not known: spelled otherwise, or another's word.

    Example:
        >>> nearest_options("--learning_rate", ["--lr", "--seed"]), nearest_options("--sede", ["--lr", "--seed"])
        (['--lr'], ['--seed'])
    """
    options = [option[2:] for option in known if option.startswith("--")]
    word = flag.lstrip("-").replace("_", "-")
    meant = [ours for ours, others in _OTHER_WORDS.items() if word in others and ours in options]
    return [f"--{option}" for option in meant or _near(word, options)]


def _near(name: str, known: list[str]) -> list[str]:
    """Return the nearest names, at most three; of those, names of the same length first."""
    near = difflib.get_close_matches(name, known, cutoff=_CUTOFF)
    how_near = {other: difflib.SequenceMatcher(None, other, name).ratio() for other in near}  # as difflib orders them
    chosen = [other for other in near if how_near[other] >= _AS_NEAR * how_near[near[0]] - 1e-9]
    return sorted(chosen, key=lambda other: len(other) != len(name))
