"""Hyper-parameters of the language model, by the name of a preset; imports no torch, for the launcher asks them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How large the model is, and how it is trained."""

    vocabulary: int  #: Most entries of the tokeniser.
    shape: dict[str, int]  #: Tokens of a row, width, layers, heads, inner features: see `unisono.recipes.gpt.Shape`.
    lr: float  #: Highest learning rate; it warms up over `warmup` of the steps, then falls in a cosine to a tenth.
    dropout: float  #: See `unisono.recipes.gpt.GPT`.
    warmup: float = 0.03  #: A share of all steps.
    weight_decay: float = 0.1  #: Of matrices (AdamW, betas 0.9 and 0.95).
    clip_norm: float = 1.0  #: Largest global gradient norm.


PRESETS = {
    "small": Settings(
        vocabulary=4096, lr=3e-3, dropout=0.0,
        shape={"length": 128, "width": 128, "layers": 4, "heads": 4, "inner": 344},
    ),
    "10m": Settings(
        vocabulary=8192, lr=1e-3, dropout=0.1,
        shape={"length": 256, "width": 320, "layers": 6, "heads": 5, "inner": 864},
    ),
    "50m": Settings(
        vocabulary=16384, lr=6e-4, dropout=0.1,
        shape={"length": 512, "width": 576, "layers": 10, "heads": 9, "inner": 1536},
    ),
}  # fmt: skip
"""1.3, 10 and 49 million parameters with full vocabularies."""
