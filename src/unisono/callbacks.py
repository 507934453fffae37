"""Callbacks and schedules for the trainer, under one name: ``from unisono import callbacks``."""

from unisono.train.callbacks.averages import EMA as EMA
from unisono.train.callbacks.averages import SWA as SWA
from unisono.train.callbacks.averages import WeightAverage as WeightAverage
from unisono.train.callbacks.base import Callback as Callback
from unisono.train.callbacks.base import Loop as Loop
from unisono.train.callbacks.monitors import GradientMonitor as GradientMonitor
from unisono.train.callbacks.monitors import LearningRateMonitor as LearningRateMonitor
from unisono.train.callbacks.monitors import LossAverage as LossAverage
from unisono.train.callbacks.monitors import MemoryMonitor as MemoryMonitor
from unisono.train.callbacks.monitors import SamplePredictions as SamplePredictions
from unisono.train.callbacks.profiler import Profiler as Profiler
from unisono.train.callbacks.stopping import EarlyStopping as EarlyStopping
from unisono.train.callbacks.stopping import TimeLimit as TimeLimit
from unisono.train.callbacks.tensorboard import TensorBoard as TensorBoard
from unisono.train.callbacks.trackers import MLflow as MLflow
from unisono.train.callbacks.trackers import WandB as WandB
from unisono.train.schedulers import Plateau as Plateau
from unisono.train.schedulers import warmup_cosine as warmup_cosine
from unisono.train.schedulers import warmup_linear as warmup_linear


def __getattr__(name: str) -> object:
    """Say what there is in place of a name that is not here."""
    from unisono.system.hints import instead

    names = [each for each, what in globals().items() if getattr(what, "__module__", "").startswith("unisono.train")]
    raise AttributeError(f"module 'unisono.callbacks' has no attribute {name!r}.{instead(name, names)}")
