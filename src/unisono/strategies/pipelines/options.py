"""What a pipeline is asked for: its mesh of stages and copies, its schedule, and where the model is cut (no torch)."""

from dataclasses import dataclass
from typing import ClassVar

from unisono.collectives.placement import place_evenly
from unisono.errors import ConfigError
from unisono.options.fields import option
from unisono.options.quantities import Count
from unisono.strategies.options import MICRO_BATCHES, StrategyOptions
from unisono.strategies.pipelines.schedule import SCHEDULES


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineOptions(StrategyOptions):
    """Stages on several processes."""

    name: ClassVar[str] = "pipeline"
    summary: ClassVar[str] = "layers in stages on several processes (gpipe, 1f1b, interleaved), bits of exact"
    implementation: ClassVar[str] = "pipelines.pipeline:Pipeline"
    is_exact: ClassVar[bool] = True
    is_one_replica_enough: ClassVar[bool] = True
    is_sharded: ClassVar[bool] = True
    scored: ClassVar[tuple[str, ...]] = ()  # neither cuts nor schedule change a bit

    stages: int = option(2, "Processes of one pipeline; more processes make more pipelines, side by side.",
                         of=Count(2, 4096, "processes"))  # fmt: skip
    schedule: str = option("1f1b", "Order of forward and backward passes.", *SCHEDULES)
    chunks: int | None = option(None, "Stages of each process, with schedule interleaved or gpipe.",
                                of=Count(1, 4096, "stages"), usual="2, of gpipe 1")  # fmt: skip
    micro_batches: int | None = option(
        None, "Micro-batches of a pipeline in a step: sets the replicas.", of=MICRO_BATCHES,
        usual="the replicas, shared out",
    )  # fmt: skip
    cuts: tuple[str, ...] | None = option(
        None, "Layers that the stages but the first begin with, as conv2,fc1.", usual="by number of parameters"
    )

    def __post_init__(self) -> None:
        StrategyOptions.__post_init__(self)
        if (self.schedule == "interleaved" and self.chunks == 1) or (
            self.schedule == "1f1b" and self.chunks not in (None, 1)
        ):
            raise ConfigError(
                f"strategy pipeline: schedule {self.schedule} has {'several' if self.chunks == 1 else 'one'} "
                f"stage{'s' if self.chunks == 1 else ''} a process, got chunks {self.chunks}. "
                "Hint: 1f1b for one, interleaved for two or more."
            )

    @property
    def num_stages(self) -> int:
        """Into how many stages the model is cut."""
        return self.stages * (self.chunks or (2 if self.schedule == "interleaved" else 1))

    @property
    def sets_replicas(self) -> bool:
        return self.micro_batches is not None

    def mesh(self, world_size: int) -> tuple[int, int]:
        """Return the processes of a pipeline and the number of pipelines: rank = process * pipelines + pipeline.

        In a world of fewer processes than stages, each takes several.

        Raises:
            ConfigError: The world has no such shape.
        """
        if world_size % self.stages and self.stages % world_size:
            raise ConfigError(
                f"strategy pipeline: {world_size} processes are no rows of {self.stages} stages. Hint: --workers "
                f"{max(1, world_size // self.stages) * self.stages}, or --stages {world_size}."
            )
        width = min(self.stages, world_size)
        return width, world_size // width

    def usual_workers(self, cores: int) -> int:
        """See `StrategyOptions.usual_workers`: whole pipelines."""
        return max(1, cores // self.stages) * self.stages

    def default_replicas(self, world_size: int) -> int:
        """See `StrategyOptions.default_replicas`: two micro-batches a stage."""
        return (self.micro_batches or 2 * self.stages) * self.mesh(world_size)[1]

    def check(self, world_size: int) -> None:
        self.mesh(world_size)

    def rows(self, replicas: int, world_size: int) -> list[range]:
        """Return the replicas of each pipeline."""
        _, pipelines = self.mesh(world_size)
        if self.micro_batches is not None and replicas != self.micro_batches * pipelines:
            raise ConfigError(
                f"micro_batches {self.micro_batches} in {pipelines} pipeline{'s' if pipelines > 1 else ''} means "
                f"{self.micro_batches * pipelines} replicas, got {replicas}. Hint: leave one of the two out."
            )
        if replicas < pipelines:
            raise ConfigError(
                f"expected a replica for each of {pipelines} pipelines, got {replicas}. "
                f"Hint: --replicas {pipelines} or more, or {replicas * self.stages} processes."
            )
        return place_evenly(replicas, pipelines)

    def place(self, replicas: int, world_size: int) -> list[range]:
        """See `StrategyOptions.place`: samples go to the first stage, targets to the last; both load a micro-batch."""
        width, _ = self.mesh(world_size)
        rows = self.rows(replicas, world_size)
        return [row if process in (0, width - 1) else range(0) for process in range(width) for row in rows]
