"""How a strategy sends gradients: when, how they are coded, and to how many bits they are rounded (no torch)."""

from dataclasses import dataclass
from typing import Any

from unisono.errors import ConfigError
from unisono.options.fields import option


@dataclass(frozen=True, kw_only=True, slots=True)
class SendingOptions:
    """The options of a strategy that sends gradients along the canonical tree."""

    overlap: str = option(
        "auto", "Send gradients during the backward pass, with the same bits; auto: over sockets.", "auto", "on", "off"
    )
    codec: str = option(
        "auto", "Code gradients between hosts, without loss: planes; auto: where that is faster.",
        "auto", "none", "planes",
    )  # fmt: skip
    compress: str = option(
        "none", "Round every replica's gradients and every sum of them: other bits, the same on any number of "
        "workers; 2 bytes a number between processes, or 1.", "none", "bf16", "int8",
    )  # fmt: skip

    def check_sending(self) -> None:
        """Refuse (`ConfigError`) two ways to code at once."""
        if self.compress != "none" and self.codec == "planes":
            raise ConfigError(
                f"strategy exact: expected one of compress and codec, got compress {self.compress} and codec planes. "
                "Hint: leave codec out; what is rounded is sent in its short form anyway."
            )

    def score_rounding(self) -> dict[str, Any]:
        """Return what of this belongs to the score: the rounding, or nothing where there is none."""
        return {} if self.compress == "none" else {"compress": self.compress}
