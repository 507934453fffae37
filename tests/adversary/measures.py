"""Cases about metrics: the same bits however the samples are dealt out, and the value that others compute."""

import math
import random
from typing import Any

import numpy as np
import sklearn.metrics
import torch

import unisono
from adversary.found import check
from unisono.metrics.exchange import merge_over_ranks


def values(make: Any, batches: list[Any], cuts: list[int]) -> list[dict[str, str]]:
    """Return a metric over batches dealt out to ranks in runs that end at `cuts`, as every rank sees it."""

    def program(transport: Any) -> dict[str, str]:
        metric = make()
        for output, target in batches[([0, *cuts])[transport.rank] : cuts[transport.rank]]:
            metric.update(output, target)
        return {name: value.hex() for name, value in merge_over_ranks({"m": metric}, transport).items()}

    return unisono.run_ranks(program, len(cuts))


def metric(chance: random.Random, *, cheat: bool = False) -> str:
    """One to five ranks, any runs of batches, some ranks without any: one value, and it is scikit-learn's."""
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    num_samples, classes = chance.randint(2, 120), chance.randint(2, 6)
    scores = torch.randn(num_samples, classes, generator=generator)
    if chance.random() < 0.3:
        scores = scores.round()  # ties
    target = torch.randint(0, classes, (num_samples,), generator=generator)
    size = chance.randint(1, 30)
    cut = [slice(start, start + size) for start in range(0, num_samples, size)]
    guesses, labels = scores.argmax(dim=1), list(range(classes))
    kind = chance.choice(["accuracy", "f1", "precision", "recall", "confusion", "mean", "perplexity", "auroc"])
    average = chance.choice(["macro", "micro", "weighted"])
    ratio = {"f1": unisono.F1, "precision": unisono.Precision, "recall": unisono.Recall}
    output, make, expected = scores, None, math.nan
    if kind in ratio:
        make = lambda: ratio[kind](classes, average=average)  # noqa: E731
        scorer = getattr(sklearn.metrics, f"{kind}_score")
        expected = scorer(target, guesses, labels=labels, average=average, zero_division=0)
    elif kind == "accuracy":
        make, expected = unisono.Accuracy, sklearn.metrics.accuracy_score(target, guesses)
    elif kind == "confusion":
        make = lambda: unisono.ConfusionMatrix(classes)  # noqa: E731
        expected = sklearn.metrics.confusion_matrix(target, guesses, labels=labels)[0, 0]
    elif kind == "mean":
        output = scores[:, 0].double() * 10.0 ** torch.randint(-18, 18, (num_samples,), generator=generator)
        make, expected = unisono.Mean, math.fsum(output.tolist()) / num_samples
    elif kind == "perplexity":
        make = unisono.Perplexity
        losses = torch.nn.functional.cross_entropy(scores, target, reduction="none").double()
        expected = math.exp(math.fsum(losses.tolist()) / num_samples)
    elif kind == "auroc":
        output, target = scores[:, 0], (target == 0).long()
        make = unisono.AUROC
        if 0 < int(target.sum()) < num_samples:
            expected = sklearn.metrics.roc_auc_score(target.numpy(), output.double().numpy())
    batches = [(output[part], target[part]) for part in cut]
    seen = []
    for world_size in (1, chance.randint(2, 5)):
        cuts = [*sorted(chance.randint(0, len(batches)) for _ in range(world_size - 1)), len(batches)]
        seen += values(make, batches[1:] if cheat and world_size > 1 else batches, cuts)
    check(all(value == seen[0] for value in seen), f"{kind} ({average}) depends on the ranks: {seen}")
    value = float.fromhex(next(iter(seen[0].values())))
    if not np.isnan(expected):
        check(
            math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12), f"{kind} ({average}): {value}, not {expected}"
        )
    return f"{kind} of {num_samples} samples"
