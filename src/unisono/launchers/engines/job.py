"""What a job of any engine is asked for in the same words; each engine's own job adds what is its own (pure)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from unisono.errors import ConfigError
from unisono.options.fields import check, option
from unisono.options.quantities import DEVICES, NODES, THREADS, WORKERS

_VARIABLE = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What every engine takes."""

    threads: int = option(1, "Threads per rank, and CPUs where the engine keeps some.", of=THREADS, word="T")
    env: Mapping[str, str] = option(text="Variable for all ranks.", make=dict, word="NAME=VALUE")

    def __post_init__(self) -> None:
        check(self)
        for name in self.env:
            if not _VARIABLE.fullmatch(name):
                raise ConfigError(f"expected --env NAME=VALUE with a variable's name, got {name!r}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesJob(Job):
    """What engines take that give whole nodes."""

    unit: ClassVar[str] = "node"  #: What the engine calls a node.

    nodes: int = option(1, "Number of machines, or pods.", of=NODES, word="N")
    workers_per_node: int = option(1, "Ranks of each.", of=WORKERS, short="-n", word="W")
    gpus_per_node: int = option(0, "GPUs of each; 0 asks for none.", of=DEVICES, word="G")

    def __post_init__(self) -> None:
        Job.__post_init__(self)
        if self.gpus_per_node and self.gpus_per_node < self.workers_per_node:
            raise ConfigError(
                f"expected a GPU for each of the {self.workers_per_node} workers of a {self.unit}, got "
                f"{self.gpus_per_node}. Hint: fewer workers per node, or no GPUs."
            )
