"""What a parameter server is asked for: how many serve, and how far workers may run ahead (no torch here)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from unisono.collectives.placement import place_evenly
from unisono.errors import ConfigError
from unisono.options.fields import option
from unisono.options.quantities import SECONDS, STEPS, WORKERS
from unisono.strategies.options import StrategyOptions
from unisono.system.words import counted


@dataclass(frozen=True, kw_only=True, slots=True)
class PSOptions(StrategyOptions):
    """The parameter server."""

    name: ClassVar[str] = "ps"
    summary: ClassVar[str] = "parameter server: workers push gradients, servers update, all pull"
    implementation: ClassVar[str] = "servers.parameter_server:ParameterServer"

    servers: int = option(1, "The first K processes serve and compute no gradients; each has some parameters.",
                          of=WORKERS)  # fmt: skip

    @property
    def shares_gradients(self) -> bool:
        return False

    def default_replicas(self, world_size: int) -> int:
        """See `StrategyOptions.default_replicas`: one a worker."""
        return max(1, world_size - self.servers)

    def check(self, world_size: int) -> None:
        if world_size <= self.servers:
            raise ConfigError(
                f"strategy {self.name} needs a worker beside {counted(self.servers, 'server')}, got "
                f"{counted(world_size, 'process', 'processes')}. Hint: --workers {self.servers + 1} or more."
            )

    def place(self, replicas: int, world_size: int) -> list[range]:
        """See `StrategyOptions.place`: servers compute nothing."""
        self.check(world_size)
        workers = world_size - self.servers
        if replicas < workers:
            raise ConfigError(
                f"expected a replica for each of {workers} workers, got {replicas}. "
                f"Hint: at most {replicas + self.servers} processes, or --replicas {workers}."
            )
        return [range(0)] * self.servers + place_evenly(replicas, workers)


@dataclass(frozen=True, kw_only=True, slots=True)
class AsyncPSOptions(PSOptions):
    """The asynchronous parameter server."""

    name: ClassVar[str] = "ps_async"
    summary: ClassVar[str] = "asynchronous parameter server with a bound on staleness"
    implementation: ClassVar[str] = "servers.async_server:AsyncParameterServer"
    is_repeatable: ClassVar[bool] = False
    scored: ClassVar[tuple[str, ...]] = ("max_staleness",)
    needs_processes: ClassVar[bool] = True
    scales_losses: ClassVar[bool] = False

    max_staleness: int = option(
        4, "Steps that a worker may be ahead of the slowest one; 0 is ps.", of=replace(STEPS, low=0)
    )
    timeout_s: float = option(300.0, "Longest silence of server or workers.", of=replace(SECONDS, low=0.1))

    def __post_init__(self) -> None:
        StrategyOptions.__post_init__(self)
        if self.servers != 1:
            raise ConfigError(f"strategy ps_async has one server, got servers {self.servers}. Hint: ps has several.")
