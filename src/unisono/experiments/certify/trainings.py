"""The trainings that a certificate compares, as plain values (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

BATCH_SIZE = 61
STEPS = 6
MODELS = ("linear", "cnn", "transformer", "lstm")
WAYS = {
    "fp32": "in fp32", "bf16": "in bf16", "fp16": "in fp16 with its scaler",
    "TF32": "in fp32 with and without TF32 (torch.set_float32_matmul_precision, torch.backends.cudnn.allow_tf32)",
    "optimizers": "by torch's optimizers: tensor by tensor, foreach, fused, on GPUs capturable",
}  # fmt: skip
"""What the same bits are claimed of, each with its words."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """One training: eight replicas and batches of 61, so that hardly anything divides anything; gradients clipped."""

    name: str
    model: str = "linear"
    strategy: str = "exact"
    replicas: int = 8
    precision: str = "fp32"
    seed: int = 0
    steps: int = STEPS
    out: str | None = None  #: Run directory; a checkpoint every two steps.
    dies_at: int | None = None  #: In this step the last rank kills its own process.
    matmul: str | None = None  #: Torch's flag for the precision of matrix products; cuDNN's follows.
    optimizer: str = "Adam"  #: One of torch's.
    form: str | None = None  #: ``foreach``, ``fused``, ``capturable``, ``single``; None: torch chooses.
    is_compiled: bool = False
    is_dynamic: bool = False  #: Compiled once for all sizes of a micro-batch, whichever comes first.


CONTROLS = {name: Training(name=name, strategy=name, replicas=6) for name in ("ddp", "allreduce")}
"""Trainings whose bits depend on the number of processes: six replicas, which 2 and 3 share evenly."""
EXACT_6 = Training(name="exact-6", replicas=6)


def claims(way: str, models: Sequence[str] = MODELS, *, on_gpu: bool = False) -> list[Training]:
    """Return what must be the same on any number of processes, in one of the `WAYS`.

    LSTMs are left out in fp16, which torch cannot compute on most CPUs; capturable optimizers on CPUs.
    """
    if way == "optimizers":
        forms = {name: ("single", "foreach", "fused", *(["capturable"] * on_gpu)) for name in ("Adam", "AdamW")}
        forms["SGD"] = ("single", "foreach", "fused")
        return [
            Training(name=f"{name} {form}", optimizer=name, form=form) for name, each in forms.items() for form in each
        ]
    if way == "TF32":
        flags = {"on": "high", "off": "highest"}
        return [
            Training(name=f"{model} TF32 {told}", model=model, matmul=flag)
            for told, flag in flags.items() for model in models if model in ("linear", "cnn")
        ]  # fmt: skip
    return [
        Training(name=f"{model} {way}", model=model, precision=way)
        for model in models if (model, way) != ("lstm", "fp16")
    ]  # fmt: skip


def controls(workers: int) -> list[Training]:
    """Return what must not be the same on so many processes."""
    return [EXACT_6, *CONTROLS.values()] if workers in (2, 3) else []


def sharded(workers: int, models: Sequence[str] = MODELS) -> list[Training]:
    """Return what must be the same as with ``exact``: fsdp, and pipeline where the processes make rows of two."""
    names = ("fsdp", "pipeline") if workers % 2 == 0 else ("fsdp",)
    return [Training(name=f"{name} {model}", model=model, strategy=name) for name in names for model in models]
