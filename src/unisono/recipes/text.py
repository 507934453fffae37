"""Your own labelled texts: the gated convolutional network of the film reviews, or the bag of words."""

from typing import Any

import unisono
from unisono.data.texts import Texts
from unisono.recipes.catalog import Options
from unisono.recipes.play import spread
from unisono.recipes.sources import own_texts
from unisono.recipes.text_training import PRESETS, fit_texts


def train(options: Options) -> dict[str, Any]:
    """Play the recipe; the number of skipped rows stands with the metrics."""
    settings = PRESETS["best"]
    with unisono.Run(**options.run_settings(clip_norm=settings.clip_norm)) as run:
        data = own_texts(options)
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
        result = fit_texts(
            run, options, settings, train_set, test_set, len(data.vocabulary), num_classes=len(data.classes)
        )
        if data.skipped:
            run.record({"skipped_rows": data.skipped})
            result = run.result()
        return result
