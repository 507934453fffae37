"""What the recipes for texts share: hyper-parameters by name, and one way to train."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import unisono
from unisono.data.imdb import ImdbData
from unisono.data.own_texts import TextData
from unisono.data.texts import Texts
from unisono.recipes.catalog import Options
from unisono.recipes.gated_cnn import BagOfWords, GatedCNN
from unisono.recipes.play import fit, spread
from unisono.recipes.speed import one_cycle, tune


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters for texts.

    Attributes:
        lr: Highest learning rate of a one-cycle schedule, or the constant one.
        cycle: Whether the rate follows one cycle.
        clip_norm: Largest global gradient norm.
        weight_decay: Decoupled (AdamW).
        embedding_decay: The same for the embedding alone.
        regularise: Rates for `GatedCNN`; of them `BagOfWords` takes ``dropout``.
        label_smoothing: Of the cross entropy in training; the reported test loss has it too.
        length_pool: Batches sorted by length together.
    """

    lr: float
    cycle: bool = False
    clip_norm: float = 1.0
    weight_decay: float = 0.0
    embedding_decay: float = 0.0
    regularise: dict[str, Any] | None = None
    label_smoothing: float = 0.0
    length_pool: int = 1


PRESETS = {
    "best": Settings(
        lr=1.2e-3, cycle=True, weight_decay=0.1, embedding_decay=0.3,
        regularise={"word_dropout": 0.3, "dropout": 0.4, "feature_dropout": 0.2, "shift": 49, "readout": "peaks"},
    ),
    "fast": Settings(lr=2e-3, cycle=True),  # one epoch: nothing is seen twice, nothing to regularise
    "article": Settings(lr=1e-3, clip_norm=0.1),
}  # fmt: skip


def build(name: str, vocabulary_size: int, num_classes: int, settings: Settings) -> nn.Module:
    """Return the model ``gcnn`` or ``bag``."""
    rates = settings.regularise or {}
    if name == "bag":
        return BagOfWords(vocabulary_size, num_classes=num_classes, dropout=rates.get("dropout", 0.0))
    return GatedCNN(vocabulary_size, num_classes=num_classes, **rates)


def fit_texts(
    run: unisono.Run,
    options: Options,
    settings: Settings,
    data: ImdbData | TextData,
    *,
    num_classes: int,
) -> dict[str, Any]:
    """Train and evaluate; returns what ``result.json`` holds, with what a maximal length has cut."""
    train_set, test_set = (
        Texts(
            store,
            spread(len(store), options.limit),
            max_length=options.max_length,
            length_pool=settings.length_pool if options.length_pool is None else options.length_pool,
            content=data.key,
        )
        for store in (data.train, data.test)
    )
    model = tune(build(options.model, len(data.vocabulary), num_classes, settings), options)
    lr = settings.lr if options.lr is None else options.lr
    embedding = list(model.get_submodule("embedding").parameters())
    others = [parameter for name, parameter in model.named_parameters() if not name.startswith("embedding.")]
    groups = [
        {"params": embedding, "weight_decay": settings.embedding_decay},
        {"params": others, "weight_decay": settings.weight_decay},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, fused=True)
    steps = options.epochs * -(-len(train_set) // options.batch_size)
    trainer = unisono.Trainer(
        run,
        model,
        optimizer,
        loss=nn.CrossEntropyLoss(label_smoothing=settings.label_smoothing),
        scheduler=one_cycle(optimizer, lr=lr, steps=steps) if settings.cycle else None,
    )
    result = fit(trainer, options, train_set, test_set.for_evaluation())
    if options.max_length is not None:
        cut = train_set.truncated()
        run.record({"train_texts_cut": cut["texts"], "train_tokens_cut": cut["tokens"]})
        result = run.result()
    return result
