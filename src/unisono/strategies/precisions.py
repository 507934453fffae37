"""Which precisions there are, and which one a run has (pure)."""

from unisono.errors import ConfigError
from unisono.strategies.options import StrategyOptions
from unisono.system.hints import nearest

PRECISIONS = ("fp32", "bf16", "fp16")
_ELSEWHERE = {
    **dict.fromkeys(("no", "32", "32-true", "float32"), "fp32"), **dict.fromkeys(("16-mixed", "16", "float16"), "fp16"),
    **dict.fromkeys(("bf16-mixed", "bfloat16"), "bf16"),
}  # fmt: skip


def precision_of(strategy: StrategyOptions, precision: str) -> str:
    """Return the precision of a run that asks for `precision`; the option `amp` of a strategy is another word for it.

    Raises:
        ConfigError: There is no such precision, two are asked for, or the strategy cannot compute in it.
    """
    amp = getattr(strategy, "amp", "none")
    found = amp if precision == "fp32" and amp != "none" else precision
    if found not in PRECISIONS:
        other = _ELSEWHERE.get(str(precision))
        hint = f" Hint: {other!r}." if other else nearest(str(precision), PRECISIONS)
        raise ConfigError(f"expected precision {', '.join(PRECISIONS)}, got {precision!r}.{hint}")
    if amp not in ("none", found):
        raise ConfigError(f"precision {precision} and amp {amp} say two things. Hint: leave amp out.")
    if found == "fp16" and not strategy.scales_losses:
        raise ConfigError(
            f"strategy {strategy.name} updates before all ranks can agree that a gradient has overflowed, as the "
            "scaled losses of precision fp16 need it. Hint: precision bf16, which needs no scaling."
        )
    return found
