"""What the recipes for texts share: hyper-parameters by name, and one way to train."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import unisono
from unisono.data.sets.imdb import ImdbData
from unisono.data.sets.own_texts import TextData
from unisono.data.sets.texts import Texts
from unisono.recipes.catalog import Options
from unisono.recipes.execute import fit, spread
from unisono.recipes.gated_cnn import BagOfWords, GatedCNN
from unisono.recipes.speed import one_cycle, tune
from unisono.recipes.trained.model_file import ModelFile


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters for texts."""

    lr: float  #: Highest learning rate of a one-cycle schedule, or the constant one.
    cycle: bool = False  #: Whether the rate follows one cycle.
    clip_norm: float = 1.0  #: Largest global gradient norm.
    weight_decay: float = 0.0  #: Decoupled (AdamW).
    embedding_decay: float = 0.0  #: The same for the embedding alone.
    embedding_lr: float = 1.0  #: The rate of the gated CNN's embedding, as a multiple of `lr`.
    #: What Adam adds to the size of the embedding's gradients before it divides by it. Far above their own size (1e-8
    #: is far below) a word moves as often as it occurs, not every word by as much: rare words are learnt by heart
    #: later.
    embedding_eps: float = 1e-8
    regularise: dict[str, Any] | None = None  #: Rates for `GatedCNN`; of them `BagOfWords` takes ``dropout``.


PRESETS = {
    "best": Settings(
        lr=2e-3, cycle=True, weight_decay=0.1, embedding_decay=0.3, embedding_lr=20.0, embedding_eps=1e-3,
        regularise={"word_dropout": 0.2, "dropout": 0.3, "feature_dropout": 0.1, "shift": 49, "readout": "all"},
    ),
    "fast": Settings(lr=2e-3, cycle=True),  # one epoch: nothing is seen twice, nothing to regularise
    "article": Settings(lr=1e-3, clip_norm=0.1),
}  # fmt: skip


def build(name: str, vocabulary_size: int, num_classes: int, rates: dict[str, Any]) -> nn.Module:
    """Return the model ``gcnn`` or ``bag``."""
    if name == "bag":
        return BagOfWords(vocabulary_size, num_classes=num_classes, dropout=rates.get("dropout", 0.0))
    return GatedCNN(vocabulary_size, num_classes=num_classes, **rates)


def groups_of(model: nn.Module, settings: Settings, lr: float, name: str) -> list[dict[str, Any]]:
    """Return the optimizer's groups of parameters: the embedding, and all others."""
    embedding = list(model.get_submodule("embedding").parameters())
    others = [parameter for path, parameter in model.named_parameters() if not path.startswith("embedding.")]
    words: dict[str, Any] = {"params": embedding, "weight_decay": settings.embedding_decay}
    if name == "gcnn":
        words |= {"lr": lr * settings.embedding_lr, "eps": settings.embedding_eps}
    return [words, {"params": others, "weight_decay": settings.weight_decay}]


def fit_texts(
    run: unisono.Run, options: Options, settings: Settings, data: ImdbData | TextData, classes: Sequence[str]
) -> dict[str, Any]:
    """Train and evaluate; return what ``result.json`` holds, with texts that were cut and rows that were skipped."""
    train_set, test_set = (
        Texts(
            store,
            spread(len(store), options.limit),
            max_length=options.max_length,
            length_pool=1 if options.length_pool is None else options.length_pool,
            content=data.key,
        )
        for store in (data.train, data.test)
    )
    file = ModelFile.of(
        options, classes=classes,
        model={
            "name": options.model, "vocabulary_size": len(data.vocabulary), "num_classes": len(classes),
            "rates": settings.regularise or {},
        },
        inputs={
            "kind": "texts", "max_length": options.max_length, "encoding": options.encoding or "utf-8",
            "text_column": options.text_column or "text",
        },
        files={"vocabulary.json": data.vocabulary.to_json()},
    )  # fmt: skip
    model = tune(build(**file.model), options)
    lr = settings.lr if options.lr is None else options.lr
    optimizer = torch.optim.AdamW(groups_of(model, settings, lr, options.model), lr=lr, fused=True)
    steps = options.steps(len(train_set))
    facts: dict[str, float] = {}
    if options.max_length is not None:
        facts = {f"train_{what}_cut": number for what, number in train_set.truncated().items()}
    if isinstance(data, TextData) and data.skipped:
        facts["skipped_rows"] = data.skipped
    return fit(
        run, options, model, optimizer, train_set, test_set.for_evaluation(), file=file, facts=facts,
        loss=nn.CrossEntropyLoss(), scheduler=one_cycle(optimizer, steps=steps) if settings.cycle else None,
    )  # fmt: skip
