"""Accelerate's interface, for scripts that keep their loop and change ``from accelerate import Accelerator``."""

from unisono.compat.accelerate.accelerator import Accelerator as Accelerator
from unisono.compat.accelerate.saving import skip_first_batches as skip_first_batches
from unisono.compat.accelerate.settings import DataLoaderConfiguration as DataLoaderConfiguration
from unisono.compat.accelerate.settings import DistributedDataParallelKwargs as DistributedDataParallelKwargs
from unisono.compat.accelerate.settings import DistributedType as DistributedType
from unisono.compat.accelerate.settings import GradientAccumulationPlugin as GradientAccumulationPlugin
from unisono.compat.accelerate.settings import InitProcessGroupKwargs as InitProcessGroupKwargs
from unisono.compat.accelerate.settings import ProjectConfiguration as ProjectConfiguration
from unisono.compat.accelerate.settings import set_seed as set_seed

__all__ = [
    "Accelerator",
    "DataLoaderConfiguration",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "GradientAccumulationPlugin",
    "InitProcessGroupKwargs",
    "ProjectConfiguration",
    "set_seed",
    "skip_first_batches",
]
