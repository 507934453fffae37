"""torchmetrics: its own synchronisation on two ranks: sums, extrema, kept values of other lengths, an empty shard."""

import sys

import torch
import torch.distributed as dist
import torchmetrics
from recorded import leave, record


def main(folder: str) -> None:
    """Bring every rank other samples; the ranks' metrics must be those of all samples."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    draw = torch.Generator().manual_seed(3)
    scores, labels = torch.rand(20, 3, generator=draw).softmax(1), torch.randint(0, 3, (20,), generator=draw)
    own = slice(0, 7) if rank == 0 else slice(7, 20)
    metrics = {
        "accuracy": torchmetrics.Accuracy(task="multiclass", num_classes=3),
        "f1": torchmetrics.F1Score(task="multiclass", num_classes=3, average="macro"),
        "auroc": torchmetrics.AUROC(task="multiclass", num_classes=3),  # keeps everything: 7 and 13 samples
        "mean": torchmetrics.MeanMetric(),
        "most": torchmetrics.MaxMetric(),
        "pearson": torchmetrics.PearsonCorrCoef(),
        "cat": torchmetrics.CatMetric(),
    }
    for name in ("accuracy", "f1", "auroc"):
        metrics[name].update(scores[own], labels[own])
    for name in ("mean", "most"):
        metrics[name].update(scores[own, 0])
    metrics["pearson"].update(scores[own, 0], scores[own, 1])
    if rank == 1:  # and rank 0 has none
        metrics["cat"].update(torch.tensor([1.0, 2.0]))
    found = {name: metric.compute() for name, metric in metrics.items()}
    collection = torchmetrics.MetricCollection([torchmetrics.Precision("binary"), torchmetrics.Recall("binary")])
    collection.update(scores[own, 0], labels[own] % 2)
    record(folder, None, found, collection.compute())


if __name__ == "__main__":
    main(sys.argv[1])
    leave()
