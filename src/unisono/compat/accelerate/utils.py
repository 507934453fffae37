"""What scripts import from ``accelerate.utils``, under the same names."""

from unisono.compat.accelerate.settings import DataLoaderConfiguration as DataLoaderConfiguration
from unisono.compat.accelerate.settings import DistributedDataParallelKwargs as DistributedDataParallelKwargs
from unisono.compat.accelerate.settings import DistributedType as DistributedType
from unisono.compat.accelerate.settings import GradientAccumulationPlugin as GradientAccumulationPlugin
from unisono.compat.accelerate.settings import InitProcessGroupKwargs as InitProcessGroupKwargs
from unisono.compat.accelerate.settings import ProjectConfiguration as ProjectConfiguration
from unisono.compat.accelerate.settings import set_seed as set_seed
