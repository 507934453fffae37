"""The limits for gradients that a run is given: of their norm, or of each element; `base` applies them. No torch."""

from dataclasses import dataclass
from typing import Any

from unisono.errors import ConfigError
from unisono.options.quantities import CLIP


@dataclass(frozen=True, kw_only=True, slots=True)
class Clipping:
    """What an update does to the mean gradient of the whole batch first; nothing by default."""

    norm: float | None = None  #: Largest global norm; a longer gradient is scaled down.
    #: Largest magnitude of an element; a larger one is set to it. Complex gradients have no such limit.
    value: float | None = None

    def __post_init__(self) -> None:
        for name in ("norm", "value"):
            object.__setattr__(self, name, CLIP.maybe(f"clip_{name}", getattr(self, name)))
        if self.norm is not None and self.value is not None:
            raise ConfigError(
                f"expected clip_norm or clip_value, got both ({self.norm} and {self.value}): their order would change "
                "the result. Hint: leave one of them out."
            )

    @property
    def score(self) -> dict[str, Any]:
        """What belongs to the run's score."""
        return {"clip_norm": self.norm, **({} if self.value is None else {"clip_value": self.value})}
