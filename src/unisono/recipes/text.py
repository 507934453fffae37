"""Your own labelled texts: the gated convolutional network of the film reviews, or the bag of words."""

from typing import Any

import unisono
from unisono.recipes.catalog import Options
from unisono.recipes.sources import own_texts
from unisono.recipes.text_training import PRESETS, fit_texts
from unisono.recipes.text_training import build as build


def train(options: Options) -> dict[str, Any]:
    """Run the recipe."""
    settings = PRESETS["best"]
    with unisono.Run(**options.run_settings(clip_norm=settings.clip_norm)) as run:
        data = own_texts(options)
        return fit_texts(run, options, settings, data, data.classes)
