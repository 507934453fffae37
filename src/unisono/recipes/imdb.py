"""Sentiment of film reviews (IMDB): a gated convolutional network, or a bag of words.

Three presets: ``best`` is regularised, ``fast`` is the shortest way to 85 % (one epoch), ``article`` are the settings
of the article that the network comes from (Adam 1e-3, gradient norm clipped at 0.1, no regularisation: it overfits from
its second epoch on).
"""

from typing import Any

import unisono
from unisono.data.sets.imdb import LABELS
from unisono.recipes.catalog import Options
from unisono.recipes.sources import imdb_data
from unisono.recipes.text_training import PRESETS, fit_texts
from unisono.recipes.text_training import build as build


def train(options: Options) -> dict[str, Any]:
    """Run the recipe."""
    settings = PRESETS[options.preset_name]
    with unisono.Run(**options.run_settings(clip_norm=settings.clip_norm)) as run:
        return fit_texts(run, options, settings, imdb_data(options), [*LABELS])
