"""The trainings that a certificate compares, as plain values (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

BATCH_SIZE = 61
STEPS = 6
MODELS = ("linear", "cnn", "transformer", "lstm")


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
    matmul: str | None = None  #: Torch's flag for the precision of matrix products.
    is_compiled: bool = False


CONTROLS = {name: Training(name=name, strategy=name, replicas=6) for name in ("ddp", "allreduce")}
"""Trainings whose bits depend on the number of processes: six replicas, which 2 and 3 share evenly."""
EXACT_6 = Training(name="exact-6", replicas=6)


def claims(models: Sequence[str] = MODELS) -> list[Training]:
    """Return what must be the same on any number of processes: each model, in float32 and bfloat16."""
    return [
        Training(name=f"{model} {precision}", model=model, precision=precision)
        for precision in ("fp32", "bf16") for model in models
    ]  # fmt: skip


def controls(workers: int) -> list[Training]:
    """Return what must not be the same on so many processes."""
    return [EXACT_6, *CONTROLS.values()] if workers in (2, 3) else []


def sharded(workers: int, models: Sequence[str] = MODELS) -> list[Training]:
    """Return what must be the same as with ``exact``: fsdp, and pipeline where the processes make rows of two."""
    names = ("fsdp", "pipeline") if workers % 2 == 0 else ("fsdp",)
    return [Training(name=f"{name} {model}", model=model, strategy=name) for name in names for model in models]
