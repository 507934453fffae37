"""What to keep, and how to save: plain decisions, without a file being touched."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from unisono.errors import ConfigError
from unisono.options.directions import mode_of
from unisono.options.keywords import answers_init
from unisono.options.quantities import BYTES, KEPT, STEPS, settle, shown

WHEN_BUSY = ("wait", "skip")
DOUBLING = "doubling"


@answers_init
@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPolicy:
    """How a run keeps its checkpoints.

    Args:
        keep: Newest checkpoints to leave, at least 1. With 2, one damaged file costs one interval, not the run.
        best: Metric by which one more is kept, the best so far; as given to `Run.record`. None: no such one.
        best_mode: Whether ``max`` or ``min`` is best. None: as its name says (``test_loss``: min), else ``max``.
        in_background: Whether the training goes on while files are written, at the cost of a copy of the state in
            memory (a rank's own share of it where ranks share the writing).
        when_busy: What happens when a checkpoint is due while the one before is still being written: ``wait`` for it,
            or ``skip`` the new one (never the last of a run).
        share_from_bytes: From this size of the state on, the ranks share the writing; below, the leader writes all.
        keep_sparse: Save and leave for good every so many steps, or at steps 1, 2, 4, 8, ... (``"doubling"``), so that
            any step can be computed again at a bounded cost. None: no such ones.
        keep_sparse_bytes: What those may take on the disk; where they would take more, every second one goes. At least
            one stays. None: no limit.

    Raises:
        ConfigError: A value is out of range.
    """

    keep: int = 2
    best: str | None = None
    best_mode: str | None = None
    in_background: bool = True
    when_busy: str = "wait"
    share_from_bytes: int = 64 << 20
    keep_sparse: int | str | None = None
    keep_sparse_bytes: int | None = None

    def __post_init__(self) -> None:
        settle(self, keep=KEPT, share_from_bytes=BYTES)
        object.__setattr__(self, "keep_sparse", _taken_sparse(self.keep_sparse))
        object.__setattr__(self, "keep_sparse_bytes", BYTES.maybe("keep_sparse_bytes", self.keep_sparse_bytes))
        if self.keep_sparse is None and self.keep_sparse_bytes is not None:
            raise ConfigError("expected keep_sparse beside keep_sparse_bytes, got None. Hint: keep_sparse=100.")
        mode = mode_of(self.best or "", self.best_mode, name="best_mode", default="max")
        object.__setattr__(self, "best_mode", mode)
        if self.when_busy not in WHEN_BUSY:
            raise ConfigError(f"expected when_busy as one of {', '.join(WHEN_BUSY)}, got {self.when_busy!r}.")

    def is_sparse(self, step: int) -> bool:
        """Whether a step is saved to stay for good."""
        return self.sparse_place(step) is not None

    def sparse_place(self, step: int) -> int | None:
        """Return the place of a step (1-based) among those that are saved for good; None: it is none of them."""
        if self.keep_sparse is None:
            return None
        if isinstance(self.keep_sparse, str):
            return step.bit_length() - 1 if step & (step - 1) == 0 else None
        return step // self.keep_sparse if step % self.keep_sparse == 0 else None


@final
class BestSoFar:
    """Knows the best value of the policy's metric in this launch; without one, nothing is better."""

    def __init__(self, policy: CheckpointPolicy | None) -> None:
        self.name = None if policy is None else policy.best
        self._sign = -1 if policy is None or policy.best_mode == "min" else 1
        self._best = -math.inf

    def is_better(self, metrics: Mapping[str, float]) -> bool:
        """Whether these are better than all before; NaN never is."""
        value = self._sign * metrics.get(self.name, math.nan) if self.name is not None else math.nan
        is_new = value > self._best
        self._best = value if is_new else self._best
        return is_new


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptCheckpoint:
    """One checkpoint, as far as keeping it is concerned."""

    step: int  #: Its step.
    is_valid: bool  #: It verifies; others are not worth a place.
    metric: float | None = None  #: The policy's metric, None where it was not measured.


def choose_kept(
    others: Sequence[KeptCheckpoint], new: KeptCheckpoint, policy: CheckpointPolicy, *, num_bytes: int = 0
) -> list[bool]:
    """Say for each of `others`, newest first, whether it stays beside `new`, which stays in any case.

    Returns:
        True for the ``keep - 1`` newest valid ones, for those that are kept for good, and, where a metric is asked for,
        for the best valid one (the newest among equals; none where `new` is as good). A damaged one stays only above
        `new`: it shows what happened, and goes once the run has passed it.
    """
    kept, left = [], policy.keep - 1
    for candidate in others:
        kept.append(candidate.is_valid and left > 0)
        left -= kept[-1]
        if not candidate.is_valid and candidate.step > new.step:
            kept[-1] = True
    for index in _sparse_ones(others, new, policy, num_bytes):
        kept[index] = True
    sign = 1 if policy.best_mode == "max" else -1
    measured = [(sign * c.metric, -index) for index, c in enumerate(others) if c.is_valid and c.metric is not None]
    if policy.best is not None and measured:
        best, index = max(measured)
        if new.metric is None or best > sign * new.metric:
            kept[-index] = True
    return kept


def _sparse_ones(
    others: Sequence[KeptCheckpoint], new: KeptCheckpoint, policy: CheckpointPolicy, num_bytes: int
) -> list[int]:
    """Return which of `others` are kept for good: all, or every 2nd, 4th, 8th, ... so that they fit into the limit."""
    found = [policy.sparse_place(one.step) if one.is_valid else None for one in (*others, new)]
    limit, stride = policy.keep_sparse_bytes, 1
    allowed = len(found) if limit is None else max(1, limit // max(1, num_bytes))
    while len(kept := [i for i, place in enumerate(found) if place is not None and place % stride == 0]) > allowed:
        stride *= 2
    return [index for index in kept if index < len(others)]


def _taken_sparse(value: int | str | None) -> int | str | None:
    """Return `keep_sparse` as a number or the one word that it may be."""
    if value is None or value == DOUBLING:
        return value
    try:
        return STEPS.read("keep_sparse", value) if isinstance(value, str) else STEPS.take("keep_sparse", value)
    except ConfigError as error:
        raise ConfigError(f"expected keep_sparse as {STEPS.words}, or {DOUBLING!r}, got {shown(value)}.") from error


def plan_shards(sizes: dict[str, dict[str, int]], num_writers: int) -> list[dict[str, list[str]]]:
    """Cut a state into one share per writer: ``shares[writer][file] = names``. ``sizes[file][name]`` in bytes.

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
