"""A logger that knows ranks, as ``accelerate.logging`` has it."""

import logging
from collections.abc import MutableMapping
from typing import Any, final

from unisono.collectives.places import current_world


@final
class RankLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs on the main process only, or on all with ``main_process_only=False``."""

    def log(self, level: int, msg: object, *args: Any, main_process_only: bool = True, **kwargs: Any) -> None:  # type: ignore[override]
        """Log a message; ``in_order`` has no effect: the launcher marks each rank's lines."""
        kwargs.pop("in_order", None)
        if self.isEnabledFor(level) and (current_world().is_leader or not main_process_only):
            kwargs.setdefault("stacklevel", 2)
            self.logger.log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return both as they are."""
        return msg, kwargs


def get_logger(name: str, log_level: str | None = None) -> RankLogger:
    """Return a logger."""
    logger = logging.getLogger(name)
    if log_level is not None:
        logger.setLevel(log_level.upper())
    return RankLogger(logger, {})
