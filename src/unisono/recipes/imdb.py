"""Sentiment of film reviews (IMDB): a gated convolutional network, or a bag of words.

Three presets: ``best`` is regularised, ``fast`` is the shortest way to 85 %, ``article`` are the settings of the
article that the network comes from (Adam 1e-3, gradient norm clipped at 0.1, no regularisation: it overfits from its
second epoch on).
"""

from typing import Any

import unisono
from unisono.data.texts import Texts
from unisono.recipes.catalog import Options
from unisono.recipes.play import spread
from unisono.recipes.sources import imdb_data
from unisono.recipes.text_training import PRESETS, fit_texts


def train(options: Options) -> dict[str, Any]:
    """Play the recipe."""
    settings = PRESETS[options.preset_name]
    with unisono.Run(**options.run_settings(clip_norm=settings.clip_norm)) as run:
        data = imdb_data(options)
        pool = settings.length_pool if options.length_pool is None else options.length_pool
        train_set, test_set = (
            Texts(
                store,
                spread(len(store), options.limit),
                max_length=options.max_length,
                length_pool=pool,
                content=data.key,
            )
            for store in (data.train, data.test)
        )
        return fit_texts(run, options, settings, train_set, test_set, len(data.vocabulary), num_classes=2)
