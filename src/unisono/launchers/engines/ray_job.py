"""What a launch on Ray is asked for (pure but for a look at the working directory)."""

from dataclasses import dataclass
from pathlib import Path

from unisono.errors import ConfigError
from unisono.launchers.engines.job import Job
from unisono.options.fields import option
from unisono.options.quantities import CPUS, DEVICES, RANKS, RESTARTS, SECONDS

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@dataclass(frozen=True, kw_only=True, slots=True)
class RayJob(Job):
    """One launch on Ray; the fields that users set say what they are."""

    kind: str  #: ``script`` or ``module``.
    target: str  #: Path or name of it.
    args: tuple[str, ...] = ()  #: Its arguments.
    workers: int = option(text="Ranks on all machines together.", of=RANKS, short="-n", word="N")
    cpus: float = option(1, "CPUs that Ray keeps for each rank.", of=CPUS, key="cpus_per_worker", word="C")
    gpus: int = option(0, "GPUs that Ray keeps for each rank.", of=DEVICES, key="gpus_per_worker", word="G")
    strategy: str = option("PACK", "How Ray spreads the ranks over nodes.", *STRATEGIES)
    address: str | None = option(None, "Of the cluster.", usual="what Ray finds, else one on this machine")
    working_dir: str | None = option(
        None, "Let Ray copy DIR to all nodes and start there.", usual="this directory, which they must share",
        word="DIR", is_path=True,
    )  # fmt: skip
    max_restarts: int = option(
        0, "Start the ranks again after one has failed or its node is lost; for scripts that resume.", of=RESTARTS
    )
    wait_s: float = option(300.0, "Longest wait for room.", of=SECONDS, key="wait", word="S")

    def __post_init__(self) -> None:
        Job.__post_init__(self)
        if self.working_dir is not None and not Path(self.working_dir).is_dir():
            raise ConfigError(f"expected --working-dir with a directory that exists, got {self.working_dir!r}.")

    @property
    def bundle(self) -> dict[str, float]:
        """What Ray keeps for each rank."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}
