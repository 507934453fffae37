"""What to keep, and how to save: plain decisions, without a file being touched."""

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.errors import ConfigError
from unisono.options.quantities import BYTES, KEPT, settle

MODES = ("max", "min")
WHEN_BUSY = ("wait", "skip")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPolicy:
    """How a run keeps its checkpoints.

    Args:
        keep: Newest checkpoints to leave, at least 1. With 2, one damaged file costs one interval, not the run.
        best: Metric by which one more is kept, the best so far; as given to `Run.record`. None: no such one.
        best_mode: ``max`` or ``min``.
        in_background: Whether the training goes on while files are written, at the cost of a copy of the state in
            memory (a rank's own share of it where ranks share the writing).
        when_busy: What happens when a checkpoint is due while the one before is still being written: ``wait`` for it,
            or ``skip`` the new one (never the last of a run).
        share_from_bytes: From this size of the state on, the ranks share the writing; below, the leader writes all.

    Raises:
        ConfigError: A value is out of range.
    """

    keep: int = 2
    best: str | None = None
    best_mode: str = "max"
    in_background: bool = True
    when_busy: str = "wait"
    share_from_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        settle(self, keep=KEPT, share_from_bytes=BYTES)
        for name, value, known in (("best_mode", self.best_mode, MODES), ("when_busy", self.when_busy, WHEN_BUSY)):
            if value not in known:
                raise ConfigError(f"expected {name} as one of {', '.join(known)}, got {value!r}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptCheckpoint:
    """One checkpoint, as far as keeping it is concerned.

    Attributes:
        step: Its step.
        is_valid: It verifies; others are not worth a place.
        metric: The policy's metric, None where it was not measured.
    """

    step: int
    is_valid: bool
    metric: float | None = None


def choose_kept(others: Sequence[KeptCheckpoint], new: KeptCheckpoint, policy: CheckpointPolicy) -> list[bool]:
    """Say for each of `others`, newest first, whether it stays beside `new`, which stays in any case.

    Returns:
        True for the ``keep - 1`` newest valid ones and, where a metric is asked for, for the best valid one (the
        newest among equals; none where `new` is as good). A damaged one stays only above `new`: it shows what
        happened, and goes once the run has passed it.
    """
    kept, left = [], policy.keep - 1
    for candidate in others:
        kept.append(candidate.is_valid and left > 0)
        left -= kept[-1]
        if not candidate.is_valid and candidate.step > new.step:
            kept[-1] = True
    sign = 1 if policy.best_mode == "max" else -1
    measured = [(sign * c.metric, -index) for index, c in enumerate(others) if c.is_valid and c.metric is not None]
    if policy.best is not None and measured:
        best, index = max(measured)
        if new.metric is None or best > sign * new.metric:
            kept[-index] = True
    return kept


def plan_shards(sizes: dict[str, dict[str, int]], num_writers: int) -> list[dict[str, list[str]]]:
    """Cut a state into one share per writer: ``shares[writer][file] = names``.

    Args:
        sizes: Bytes of every tensor, by file stem, then by name.
        num_writers: Ranks that write.

    Returns:
        Files named ``model.safetensors`` for one writer, ``model-00002-of-00004.safetensors`` for more. Tensors are
        never cut: the largest go first, each to the writer that has least so far.
    """
    loads = [0] * num_writers
    shares: list[dict[str, list[str]]] = [{} for _ in range(num_writers)]
    everything = [(size, stem, name) for stem, tensors in sizes.items() for name, size in tensors.items()]
    for size, stem, name in sorted(everything, key=lambda item: (-item[0], item[1], item[2])):
        writer = loads.index(min(loads))
        loads[writer] += size
        part = "" if num_writers == 1 else f"-{writer + 1:05d}-of-{num_writers:05d}"
        shares[writer].setdefault(f"{stem}{part}.safetensors", []).append(name)
    for stem, tensors in sizes.items():
        if not tensors:  # an empty file says that there is nothing, which a missing one would not
            part = "" if num_writers == 1 else f"-00001-of-{num_writers:05d}"
            shares[0][f"{stem}{part}.safetensors"] = []
    return shares


def stem_of(file: str) -> str:
    """Return the stem that a file of `plan_shards` belongs to."""
    stem = file.removesuffix(".safetensors")
    head, _, count = stem.rpartition("-of-")
    return head.rpartition("-")[0] if head and count.isdigit() else stem
