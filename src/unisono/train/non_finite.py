"""What a NaN or infinity does to a run: it stops, or the step is skipped; alike on all ranks, and again on resume."""

from typing import Any, final

from unisono.collectives.placement import cut
from unisono.data.sampler import Indices
from unisono.errors import ConfigError, NonFiniteError

_NUM_SHOWN = 16
MOST_IN_A_ROW = 10


@final
class NonFinite:
    """Judges steps.

    Args:
        policy: ``stop`` or ``skip``.
        strategy: The strategy's name, for the message.
        is_exact: Whether it can leave out an update on all ranks alike.

    Attributes:
        num_skipped: Steps skipped since the run's start.
        in_a_row: Of these, those just now.

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
        self.num_skipped = self.in_a_row = 0

    @property
    def score(self) -> dict[str, str]:
        """What belongs to the run's score: skipping changes results."""
        return {"non_finite": "skip"} if self.skips else {}

    def judge(self, step: int, indices: Indices, replicas: int, bad_replicas: tuple[int, ...]) -> bool:
        """Return whether to update the weights; `NonFiniteError` to stop, or after too many skipped in a row.

        `bad_replicas` are those whose loss or gradient is not finite; the same on all ranks.
        """  # noqa: DOC501 - a function makes the error
        if not bad_replicas:
            self.in_a_row = 0
            return True
        self.num_skipped += 1
        self.in_a_row += 1
        if not self.skips or self.in_a_row > MOST_IN_A_ROW:
            raise _error(step, indices, replicas, bad_replicas, self.in_a_row if self.skips else 1)
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the counters."""
        return {"num_skipped": self.num_skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put the counters back."""
        self.num_skipped, self.in_a_row = state["num_skipped"], state["in_a_row"]


def _error(step: int, indices: Indices, replicas: int, bad_replicas: tuple[int, ...], in_a_row: int) -> NonFiniteError:
    """Return the error that names step, replicas and samples; the step has changed nothing."""
    first = cut(len(indices), replicas)[bad_replicas[0]]
    ids = indices[first.start : first.stop].tolist()
    shown = f"{ids[:_NUM_SHOWN]}{' ...' if len(ids) > _NUM_SHOWN else ''}"
    many = f" It is the {in_a_row}th such step in a row." if in_a_row > 1 else ""
    return NonFiniteError(
        f"step {step}: loss or gradient is NaN or infinite in replica {', '.join(map(str, bad_replicas))} of "
        f"{replicas}; samples of replica {bad_replicas[0]}: {shown}. "
        f"The weights are those of step {step - in_a_row}.{many} "
        "Hint: look at these samples, lower the learning rate, or set clip_norm.",
        step=step,
        replicas=bad_replicas,
    )
