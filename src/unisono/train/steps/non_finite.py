"""What a NaN or infinity does to a run: it stops, or the step is skipped; alike on all ranks, and again on resume."""

import math
from typing import Any, NoReturn, final

from unisono.collectives.placement import cut
from unisono.data.sampler import Indices
from unisono.errors import ConfigError, NonFiniteError, StepError

_NUM_SHOWN = 16
MOST_IN_A_ROW = 10


@final
class NonFinite:
    """Judges steps. `policy` is ``stop`` or ``skip``; `is_exact`: all ranks can leave out an update alike.

    Attributes:
        num_skipped: Steps skipped since the run's start.
        in_a_row: Of these, those just now; of several optimizers, by name.

    Raises:
        ConfigError: Another policy, or skipping with a strategy that cannot.
    """

    def __init__(self, policy: str, *, strategy: str = "exact", is_exact: bool = True) -> None:
        if policy not in ("stop", "skip"):
            raise ConfigError(f"expected non_finite 'stop' or 'skip', got {policy!r}.")
        self.skips = policy == "skip"
        if self.skips and not is_exact:
            raise ConfigError(
                f"non_finite='skip' works with the strategy 'exact', got {strategy!r}, whose ranks may have updated "
                "already. Hint: non_finite='stop', or leave strategy out."
            )
        self.num_skipped, self.in_a_row = 0, {"": 0}

    @property
    def score(self) -> dict[str, str]:
        """What belongs to the run's score: skipping changes results."""
        return {"non_finite": "skip"} if self.skips else {}

    def judge(
        self, step: int, indices: Indices, replicas: int, bad_replicas: tuple[int, ...], weight: float | None = None,
        update: str = "",
    ) -> bool:  # fmt: skip
        """Return whether to update the weights; `bad_replicas`, the same on all ranks, have a loss, gradient or weight
        that is not as it must be.

        Raises:
            NonFiniteError: To stop, or after too many skipped in a row.
            StepError: Likewise where nothing is counted, or at once for a bad weight.
        """
        if not bad_replicas:
            self.in_a_row[update] = 0
            return True
        self.num_skipped += 1
        self.in_a_row[update] = row = self.in_a_row.get(update, 0) + 1
        is_bad_weight = weight is not None and not 0.0 <= weight < math.inf
        if not self.skips or row > MOST_IN_A_ROW or is_bad_weight:
            _refuse(step, indices, replicas, bad_replicas, row if self.skips else 1, weight, update)
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the counters."""
        row = self.in_a_row
        return {"num_skipped": self.num_skipped, "in_a_row": row[""] if len(row) == 1 else {**row}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put the counters back."""
        row = state["in_a_row"]
        self.num_skipped, self.in_a_row = state["num_skipped"], {**row} if isinstance(row, dict) else {"": row}


def _refuse(
    step: int, indices: Indices, replicas: int, bad_replicas: tuple[int, ...], in_a_row: int, weight: float | None,
    update: str,
) -> NoReturn:  # fmt: skip
    """Raise the error that names step, replicas and samples; the step has changed nothing."""
    first = cut(len(indices), replicas)[bad_replicas[0]]
    ids = indices[first.start : first.stop].tolist()
    shown = f"{ids[:_NUM_SHOWN]}{' ...' if len(ids) > _NUM_SHOWN else ''}"
    many = f" It is the {in_a_row}th such step in a row." if in_a_row > 1 else ""
    if weight is not None and not 0.0 < weight < math.inf:
        is_void = weight == 0.0
        what = "nothing is counted: the weights of all micro-batches are 0" if is_void else f"a weight is {weight!r}"
        raise StepError(
            f"step {step}: {what}; expected finite ones of at least 0, and not all 0. Samples of replica "
            f"{bad_replicas[0]} of {replicas}: {shown}. The weights of the model are those of step {step - in_a_row}. "
            f"Hint: look at what weight= returns for these samples"
            f"{'; Run(non_finite=' + repr('skip') + ') leaves such steps out' if is_void else ''}."
        )
    where = f"{step}, update {update!r}" if update else f"{step}"
    raise NonFiniteError(
        f"step {where}: loss or gradient is NaN or infinite in replica {', '.join(map(str, bad_replicas))} of "
        f"{replicas}; samples of replica {bad_replicas[0]}: {shown}. "
        f"The weights are those {'before this update' if update else f'of step {step - in_a_row}'}.{many} "
        "Hint: look at these samples, lower the learning rate, or set clip_norm.",
        step=step,
        replicas=bad_replicas,
    )
