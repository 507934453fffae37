"""Scores that somebody looks at, and that no evaluation gives: found before the first step."""

from collections.abc import Sequence

from unisono.errors import ConfigError
from unisono.system.hints import nearest
from unisono.train.callbacks.base import Callback, name_of

_NO_TEST_SET = "nothing is evaluated: fit() has no test_set. Hint: fit(..., test_set=...)"


def check_monitors(callbacks: Sequence[Callback], scores: Sequence[str]) -> None:
    """Refuse callbacks that wait for a score that will not come.

    Callbacks of the program's own may put scores into `Loop.scores`: behind those, no name is a mistake yet.

    Args:
        callbacks: In the order they are called.
        scores: What an evaluation gives; empty where there is none. A metric with several values gives ``name/part``.

    Raises:
        ConfigError: Names callback and score, and the nearest there is.
    """
    for number, callback in enumerate(callbacks):
        for score in callback.needs_scores:
            if not scores:
                raise ConfigError(f"{name_of(callback)} looks at the score {score!r}, but {_NO_TEST_SET}.")
            if not _is_given(score, scores) and not _has_foreign(callbacks[:number]):
                raise ConfigError(
                    f"{name_of(callback)} looks at the score {score!r}, expected one of {', '.join(sorted(scores))}."
                    f"{nearest(score, scores)}"
                )


def check_best(best: str | None, callbacks: Sequence[Callback], scores: Sequence[str]) -> None:
    """Refuse (`ConfigError`) to keep the best checkpoint by a metric that nobody records; as `check_monitors`."""
    if best is None or _is_given(best, scores) or _has_foreign(callbacks):
        return
    if not scores:
        raise ConfigError(f"CheckpointPolicy(best={best!r}) looks at a score, but {_NO_TEST_SET}.")
    listed = ", ".join(sorted(scores))
    raise ConfigError(f"CheckpointPolicy(best={best!r}) expected one of the scores {listed}.{nearest(best, scores)}")


def _is_given(score: str, scores: Sequence[str]) -> bool:
    return score in scores or any(score.startswith(f"{name}/") for name in scores)


def _has_foreign(callbacks: Sequence[Callback]) -> bool:
    return any(not type(callback).__module__.startswith("unisono.") for callback in callbacks)
