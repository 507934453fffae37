"""Which values of a score are better, by its name (pure)."""

import re

from unisono.errors import ConfigError

MODES = ("max", "min")
_LESS = {
    "loss", "losses", "error", "errors", "err", "perplexity", "ppl", "mse", "mae", "rmse", "nll", "wer", "cer", "fid",
}  # fmt: skip
_MORE = {
    "accuracy", "acc", "f1", "precision", "recall", "auroc", "auc", "iou", "miou", "dice", "bleu", "map", "r2",
    "psnr", "ssim", "reward", "score",
}  # fmt: skip


def mode_of(score: str, mode: str | None, *, name: str = "mode", default: str) -> str:
    """Return ``min`` or ``max``: what is given, else what the score's name says, else a default.

    Raises:
        ConfigError: Something else is given.

    Example:
        >>> mode_of("test_accuracy", None, default="min"), mode_of("test_loss", None, default="max")
        ('max', 'min')
    """
    if mode is not None:
        if mode not in MODES:
            raise ConfigError(f"expected {name} as one of {', '.join(MODES)}, got {mode!r}.")
        return mode
    words = re.findall(r"[a-z]+\d*", score.lower())
    known = ["min" if word in _LESS else "max" for word in words if word in _LESS | _MORE]
    return known[-1] if known else default
