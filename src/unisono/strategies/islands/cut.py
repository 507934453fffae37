"""Replicas cut into islands (pure)."""

from unisono.errors import ConfigError


def island_size(replicas: int, islands: int | None) -> int:
    """Return how many consecutive replicas an island has; None: one.

    Raises:
        ConfigError: The replicas cannot be cut into so many equal islands.

    Example:
        >>> island_size(8, 4), island_size(8, None)
        (2, 1)
    """
    count = replicas if islands is None else islands
    if replicas % count:  # so also where there are more islands than replicas
        fits = ", ".join(str(number) for number in range(1, replicas + 1) if replicas % number == 0)
        raise ConfigError(
            f"expected islands that cut {replicas} replicas into equal parts, got {count}. "
            f"Hint: --islands as one of {fits}, or another number of --replicas."
        )
    return replicas // count
