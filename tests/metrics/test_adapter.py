"""torchmetrics' metrics give torchmetrics' values, with the same bits on any number of ranks."""

import warnings

import pytest
import torch

from metrics.shards import same_everywhere
from unisono.errors import ConfigError
from unisono.metrics.adapter import TorchMetric

torchmetrics = pytest.importorskip("torchmetrics", reason="needs the extra torchmetrics")
classification = torchmetrics.classification

CLASSES = 4


def labelled():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(61, CLASSES, generator=generator).softmax(1)
    return scores, torch.randint(0, CLASSES, (61,), generator=generator)


def measured():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(61, generator=generator) * 100, torch.randn(61, generator=generator)


# Sums of whole numbers, of floats, extrema, concatenation, no reduction, wrappers, compositions.
CASES = {
    "accuracy": (lambda: classification.MulticlassAccuracy(CLASSES), labelled),
    "f1 per label": (lambda: classification.MulticlassF1Score(CLASSES, average=None), labelled),
    "confusion": (lambda: classification.MulticlassConfusionMatrix(CLASSES), labelled),
    "auroc": (lambda: classification.MulticlassAUROC(CLASSES), labelled),
    "binned auroc": (lambda: classification.MulticlassAUROC(CLASSES, thresholds=9), labelled),
    "kappa": (lambda: classification.MulticlassCohenKappa(CLASSES), labelled),
    "classwise": (
        lambda: torchmetrics.ClasswiseWrapper(classification.MulticlassRecall(CLASSES, average=None)), labelled,
    ),
    "squared error": (torchmetrics.MeanSquaredError, measured),
    "absolute error": (torchmetrics.MeanAbsoluteError, measured),
    "r2": (torchmetrics.R2Score, measured),
    "pearson": (torchmetrics.PearsonCorrCoef, measured),
    "spearman": (torchmetrics.SpearmanCorrCoef, measured),
    "sum of two": (lambda: torchmetrics.MeanSquaredError() + torchmetrics.MeanAbsoluteError(), measured),
}  # fmt: skip


def numbers(value):
    """Return all numbers in what torchmetrics computes."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    return torch.as_tensor(value).reshape(-1).tolist()


@pytest.mark.parametrize("name", CASES)
def test_any_world_and_right(name):
    """State and value are one to the bit on one to four ranks, and torchmetrics' own over all the data."""
    make, data = CASES[name]
    outputs, targets = data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torchmetrics' own advice on memory and precision
        ours = same_everywhere(lambda: TorchMetric(make()), outputs, targets)
        theirs = make()
        theirs.update(outputs, targets)
        wanted = numbers(theirs.compute())
    assert numbers(ours) == pytest.approx(wanted, rel=1e-4)


def test_torchmetrics_own_sums_depend_on_the_order():
    """Negative control: what the adapter mends. Float states added up in another order have other bits."""
    outputs, targets = measured()

    def total(order):
        metric = torchmetrics.MeanSquaredError()
        for start in order:
            metric.update(outputs[start : start + 7], targets[start : start + 7])
        return metric.compute().item()

    starts = list(range(0, 61, 7))
    shuffled = [total(torch.randperm(len(starts), generator=torch.Generator().manual_seed(i)).mul(7).tolist())
                for i in range(20)]  # fmt: skip
    assert len({total(starts), *shuffled}) > 1


def test_in_inference_mode_and_again():
    """Evaluation runs in inference mode; afterwards the metric computes, resets and starts anew outside it."""
    metric = TorchMetric(torchmetrics.MeanSquaredError())
    for _ in range(2):
        metric.reset()
        with torch.inference_mode():
            metric.update(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0]))
            metric.update(torch.tensor([3.0]), torch.tensor([0.0]))
        assert metric.compute() == pytest.approx(14 / 3)
        metric.update(torch.tensor([0.0]), torch.tensor([0.0]))
        assert metric.compute() == pytest.approx(14 / 4)


def test_extrema_and_what_is_not_finite():
    """Maxima are maxima over all batches; an infinite addend makes a sum NaN, on every rank."""
    largest = same_everywhere(lambda: TorchMetric(_Largest()), *measured())
    assert largest == measured()[0].max().item()
    outputs, targets = measured()
    outputs[40] = torch.inf
    assert same_everywhere(lambda: TorchMetric(torchmetrics.MeanSquaredError()), outputs, targets) != 0
    assert torch.isnan(
        torch.tensor(same_everywhere(lambda: TorchMetric(torchmetrics.MeanAbsoluteError()), outputs, targets))
    )


class _Largest(torchmetrics.Metric):
    def __init__(self, reduction="max", default=float("-inf")):
        super().__init__()
        self.add_state("largest", torch.tensor(default), dist_reduce_fx=reduction)

    def update(self, output, target):
        self.largest = torch.maximum(self.largest, output.max())

    def compute(self):
        return self.largest


def test_a_reduction_of_its_own():
    """A metric's own function gets the batches' states, stacked in order."""
    outputs, targets = measured()
    second = same_everywhere(lambda: TorchMetric(_Largest(lambda stacked: stacked[1])), outputs, targets)
    assert second == outputs[7:14].max().item()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TorchMetric(object()), "torchmetrics.Metric, got object"),
        (lambda: TorchMetric(torchmetrics.MetricCollection([torchmetrics.MeanSquaredError()])), "one by one"),
        (lambda: TorchMetric(_Largest("mean")), "averages of averages"),
        (lambda: TorchMetric(_Largest("sum", 1.0)), "expected 0"),
    ],
)
def test_what_cannot_be_exact_is_refused(make, words):
    """Refused when it is wrapped, before training starts."""
    with pytest.raises(ConfigError, match=words):
        make()


def test_curves_are_refused():
    """A curve is not a number to log."""
    metric = TorchMetric(classification.BinaryROC())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        metric.update(torch.tensor([0.1, 0.9]), torch.tensor([0, 1]))
        with pytest.raises(ConfigError, match="curve"):
            metric.compute()
