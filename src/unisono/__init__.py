"""unisono: distributed PyTorch training, bit-identical for any number of worker processes.

The public names are listed in ``__all__`` and loaded on first use: ``import unisono`` costs nothing until torch is
needed. Which room may import which stands in pyproject.toml, under importlinter; docs/design/house.md is the map.
"""

TYPE_CHECKING = False  # typing is not loaded before `__main__` answers Ctrl-C

if TYPE_CHECKING:
    from typing import Any

    from unisono import callbacks as callbacks
    from unisono import collectives as collectives
    from unisono.checkpoint.interchange import load_weights as load_weights
    from unisono.checkpoint.policy import CheckpointPolicy as CheckpointPolicy
    from unisono.collectives.loopback import run_ranks as run_ranks
    from unisono.collectives.places import Distributed as Distributed
    from unisono.collectives.places import NotHere as NotHere
    from unisono.collectives.places import leader_only as leader_only
    from unisono.collectives.places import on_rank as on_rank
    from unisono.data.batches import register_batch_type as register_batch_type
    from unisono.data.datasets import ArrayDataset as ArrayDataset
    from unisono.data.distributed_sampler import DistributedSampler as DistributedSampler
    from unisono.data.partition import DataPartitioner as DataPartitioner
    from unisono.data.partition import Partition as Partition
    from unisono.data.plans.batch_schedule import BatchSchedule as BatchSchedule
    from unisono.data.plans.curriculum import Curriculum as Curriculum
    from unisono.data.plans.mixture import Mixture as Mixture
    from unisono.data.plans.weighted import Weighted as Weighted
    from unisono.data.sampler import ExactSampler as ExactSampler
    from unisono.data.sources.shards import Shards as Shards
    from unisono.data.sources.stream import Stream as Stream
    from unisono.data.tokens.token_file import TokenFile as TokenFile
    from unisono.errors import CallbackTimeout as CallbackTimeout
    from unisono.errors import CheckpointError as CheckpointError
    from unisono.errors import ConfigError as ConfigError
    from unisono.errors import DataError as DataError
    from unisono.errors import EnvironmentDrift as EnvironmentDrift
    from unisono.errors import LaunchError as LaunchError
    from unisono.errors import NonFiniteError as NonFiniteError
    from unisono.errors import PeerLost as PeerLost
    from unisono.errors import PlaceError as PlaceError
    from unisono.errors import RankDivergence as RankDivergence
    from unisono.errors import RunStopped as RunStopped
    from unisono.errors import ScoreMismatch as ScoreMismatch
    from unisono.errors import StepError as StepError
    from unisono.errors import UnisonoError as UnisonoError
    from unisono.errors import WorkerFailed as WorkerFailed
    from unisono.errors import WorldError as WorldError
    from unisono.launchers.api import launch as launch
    from unisono.metrics.adapter import TorchMetric as TorchMetric
    from unisono.metrics.auroc import AUROC as AUROC
    from unisono.metrics.base import Accuracy as Accuracy
    from unisono.metrics.base import Mean as Mean
    from unisono.metrics.base import Metric as Metric
    from unisono.metrics.labels import F1 as F1
    from unisono.metrics.labels import ConfusionMatrix as ConfusionMatrix
    from unisono.metrics.labels import Precision as Precision
    from unisono.metrics.labels import Recall as Recall
    from unisono.metrics.rates import Perplexity as Perplexity
    from unisono.metrics.rates import Throughput as Throughput
    from unisono.metrics.spans import SpanF1 as SpanF1
    from unisono.recipes.trained.load import load as load
    from unisono.strategies.catalog import strategy as strategy
    from unisono.train.callbacks.base import Callback as Callback
    from unisono.train.run import Run as Run
    from unisono.train.trainer import Trainer as Trainer
    from unisono.world import World as World

_HOMES = {
    name: home
    for home, names in {
        "checkpoint.interchange": "load_weights",
        "checkpoint.policy": "CheckpointPolicy",
        "collectives.loopback": "run_ranks",
        "collectives.places": "Distributed NotHere leader_only on_rank",
        "data.batches": "register_batch_type",
        "data.datasets": "ArrayDataset",
        "data.distributed_sampler": "DistributedSampler",
        "data.partition": "DataPartitioner Partition",
        "data.plans.batch_schedule": "BatchSchedule",
        "data.plans.curriculum": "Curriculum",
        "data.plans.mixture": "Mixture",
        "data.plans.weighted": "Weighted",
        "data.sampler": "ExactSampler",
        "data.sources.shards": "Shards",
        "data.sources.stream": "Stream",
        "data.tokens.token_file": "TokenFile",
        "errors": "CallbackTimeout CheckpointError ConfigError DataError EnvironmentDrift LaunchError "
        "NonFiniteError PeerLost PlaceError RankDivergence RunStopped ScoreMismatch StepError "
        "UnisonoError WorkerFailed WorldError",
        "launchers.api": "launch",
        "metrics.adapter": "TorchMetric",
        "metrics.auroc": "AUROC",
        "metrics.base": "Accuracy Mean Metric",
        "metrics.labels": "ConfusionMatrix F1 Precision Recall",
        "metrics.rates": "Perplexity Throughput",
        "metrics.spans": "SpanF1",
        "observe.result": "Result",
        "recipes.trained.load": "load",
        "strategies.catalog": "strategy",
        "train.callbacks.base": "Callback",
        "train.run": "Run",
        "train.trainer": "Trainer",
        "world": "World",
    }.items()
    for name in names.split()
}

_MODULES = ("callbacks", "collectives")
__version__ = "0.2.0"
__all__ = sorted(_HOMES)  # noqa: PLE0605 - spelled once


def __getattr__(name: str) -> "Any":
    """Load a public name on first use, and the modules of callbacks and collectives, which the reference names."""
    if name not in _MODULES and name not in _HOMES:
        raise _missing(name)
    try:
        import importlib

        from unisono.system.loading import collector_at_rest
        from unisono.system.messages import explain_uncaught

        explain_uncaught()

        with collector_at_rest():
            home = importlib.import_module(f"unisono.{_HOMES.get(name, name)}")
    except KeyboardInterrupt:  # a Ctrl-C while torch is loaded: where it was just then helps nobody
        from unisono.system.messages import interrupted

        raise interrupted() from None
    return home if name in _MODULES else getattr(home, name)


def _missing(name: str) -> Exception:
    """Return the error for a name that there is not: of `from unisono import NAME`, Python drops all others' words."""
    import dis
    import sys

    from unisono.system.hints import instead
    from unisono.system.messages import explain_uncaught

    frame = sys._getframe(2)
    is_import = any(
        one.offset == frame.f_lasti and one.opname == "IMPORT_FROM" for one in dis.get_instructions(frame.f_code)
    )
    if name[:2] != "__":
        explain_uncaught()
    kind = ImportError if is_import else AttributeError
    return kind(f"module 'unisono' has no attribute {name!r}.{instead(name, __dir__())}", name=name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*_HOMES, *_MODULES, "__version__"])
