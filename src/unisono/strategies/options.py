"""Strategies by name, with their options: what a run is asked for, checked before anything starts (no torch here).

Each strategy is a frozen dataclass of its options. It says whether it can run in a world, how micro-batches are
assigned to ranks, what of it belongs to the score, and which class does the work. `catalog` lists them all.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from unisono.collectives.placement import place_by_shares, place_evenly, place_whole
from unisono.errors import ConfigError
from unisono.options.fields import check, option
from unisono.options.quantities import DEVICES, SHARE, STEPS, Amount, Count
from unisono.strategies.islands.options import IslandOptions

MICRO_BATCHES = Count(1, 65_536, "micro-batches")
MEBIBYTES = Amount(0.001, 1 << 20, "MiB")


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyOptions:
    """What every strategy has; subclasses add their options."""

    name: ClassVar[str] = ""  #: As in ``--strategy NAME``.
    summary: ClassVar[str] = ""  #: One line for the catalog.
    implementation: ClassVar[str] = ""  #: Module and class that do the work.
    #: Whether the bits depend on the score alone; otherwise the number of ranks decides too.
    is_exact: ClassVar[bool] = False
    is_repeatable: ClassVar[bool] = True  #: Whether the same launch has the same bits once more.
    #: Whether ranks must be processes of torch.distributed, not threads of `run_ranks`.
    needs_processes: ClassVar[bool] = False
    most_ranks: ClassVar[int | None] = None  #: The largest useful world, None for no limit.
    is_one_replica_enough: ClassVar[bool] = False  #: Whether several ranks can work on one replica.
    is_sharded: ClassVar[bool] = False  #: Whether a rank holds a part of the weights only.
    weighs: ClassVar[bool] = False  #: Whether a step may count something else than samples, see `Objective`.
    scales_losses: ClassVar[bool] = True  #: Whether a step whose gradients overflow can be left out, by all ranks.
    #: Whether ranks may meet inside the loss function, as programs written for DDP do.
    meets_in_loss: ClassVar[bool] = False
    spellings: ClassVar[Mapping[str, str]] = {}  #: Other names of options, and ours.
    elsewhere: ClassVar[Mapping[str, str]] = {}  #: What others have as an option, and how it is said here.
    #: Options that belong to the score, since they change bits; None: all.
    scored: ClassVar[tuple[str, ...] | None] = None

    def __post_init__(self) -> None:
        try:
            check(self)
        except ConfigError as error:
            raise ConfigError(f"strategy {self.name}: {error}") from None

    @property
    def work(self) -> str:
        """Module and class that do the work with these options."""
        return self.implementation

    @property
    def shares_gradients(self) -> bool:
        """Whether every rank holds the whole batch's gradient after a step."""
        return not self.is_sharded

    def default_replicas(self, world_size: int) -> int:
        """Return the micro-batches per step where nobody has said how many."""
        return world_size

    @property
    def sets_replicas(self) -> bool:
        """Whether the options and the world say how many replicas there are, whatever the recipe's usual number."""
        return not self.is_exact

    def usual_workers(self, cores: int) -> int:
        """Return the number of processes where nobody has said how many."""
        return min(cores, self.most_ranks or cores)

    def check(self, world_size: int) -> None:
        """Refuse a world in which the strategy cannot run."""
        if self.most_ranks is not None and world_size > self.most_ranks:
            raise ConfigError(
                f"strategy {self.name} runs in {self.most_ranks} process, got {world_size}. "
                f"Hint: --workers {self.most_ranks}, or another strategy (ddp, exact) for several processes."
            )

    def check_start(self, world_size: int, *, in_threads: bool) -> None:
        """Refuse a world in which the strategy cannot run, or ranks of the wrong kind."""
        if in_threads and self.needs_processes and world_size > 1:
            raise ConfigError(
                f"strategy {self.name} works through torch.distributed, so its ranks must be processes, got "
                f"{world_size} threads of one. Hint: unisono run -n {world_size}, or unisono.launch."
            )
        self.check(world_size)

    def place(self, replicas: int, world_size: int) -> list[range]:
        """Return the replicas (micro-batches of a step) that each rank computes.

        Raises:
            ConfigError: The replicas cannot be shared out over the ranks.
        """
        self.check(world_size)
        return place_evenly(replicas, world_size)

    def score(self) -> dict[str, Any]:
        """Return what belongs to the score."""
        named = asdict(self)
        return {"name": self.name, **(named if self.scored is None else {name: named[name] for name in self.scored})}


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactOptions(IslandOptions, StrategyOptions):
    """The default: bits that depend on the score alone."""

    name: ClassVar[str] = "exact"
    summary: ClassVar[str] = "the same bits on any number of processes; the default"
    implementation: ClassVar[str] = "exact:Exact"
    is_exact: ClassVar[bool] = True
    weighs: ClassVar[bool] = True
    scored: ClassVar[tuple[str, ...]] = ()  # who computes what changes no bit

    shares: tuple[float, ...] | None = option(
        None, "Relative speed of each process, as 1,2,2: replicas are placed accordingly, with the same bits.", of=SHARE
    )
    balance: str = option(
        "none", "Whether replicas move from slow processes to fast ones by measured time, with the same bits.",
        "none", "auto",
    )  # fmt: skip

    def __post_init__(self) -> None:
        StrategyOptions.__post_init__(self)
        self.check_sending()
        self.check_islands()
        if self.balance != "none" and self.island_steps is not None:
            raise ConfigError(
                "strategy exact: islands keep weights of their own, which do not move to other processes, got balance "
                "auto and island_steps. Hint: leave one of them out."
            )

    @property
    def work(self) -> str:
        return self.implementation if self.island_steps is None else "islands.islands:Islands"

    @property
    def shares_gradients(self) -> bool:
        return self.island_steps is None

    def usual_workers(self, cores: int) -> int:
        return min(cores, self.islands or cores)

    def score(self) -> dict[str, Any]:
        return StrategyOptions.score(self) | self.score_rounding() | self.score_islands()

    def place(self, replicas: int, world_size: int) -> list[range]:
        """See `StrategyOptions.place`; in proportion to the shares."""
        if self.shares is not None and len(self.shares) != world_size:
            shares = ",".join(f"{share:g}" for share in self.shares)
            raise ConfigError(
                f"expected one share for each of {world_size} processes, got shares {shares}. "
                f"Hint: --workers {len(self.shares)}, or {world_size} shares."
            )
        if self.island_steps is not None:
            return self.place_islands(replicas, world_size, self.shares)
        return [*place_whole(replicas, world_size)] if self.shares is None else place_by_shares(replicas, self.shares)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreciseOptions(StrategyOptions):
    """Options of strategies whose ranks all hold the whole model and reduce gradients."""

    weighs: ClassVar[bool] = True

    amp: str = option("none", "Another word for precision.", "none", "bf16", "fp16")
    accumulate: int = option(1, "Micro-batches that each process adds up before the gradients move.", of=MICRO_BATCHES)

    def score(self) -> dict[str, Any]:
        """See `StrategyOptions.score`; the precision is told by the run."""
        return StrategyOptions.score(self) | {"amp": "none"}

    def default_replicas(self, world_size: int) -> int:
        return world_size * self.accumulate

    def place(self, replicas: int, world_size: int) -> list[range]:
        if self.accumulate > 1 and replicas != self.default_replicas(world_size):
            raise ConfigError(
                f"accumulate {self.accumulate} on {world_size} processes means {world_size * self.accumulate} "
                f"replicas, got {replicas}. Hint: leave one of the two out."
            )
        return StrategyOptions.place(self, replicas, world_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class DDPOptions(PreciseOptions):
    """torch's DistributedDataParallel; the options are its own."""

    name: ClassVar[str] = "ddp"
    summary: ClassVar[str] = "torch DistributedDataParallel: reduced in buckets during backward"
    implementation: ClassVar[str] = "ddp:DDP"
    needs_processes: ClassVar[bool] = True
    meets_in_loss: ClassVar[bool] = True

    spellings: ClassVar[Mapping[str, str]] = {"broadcast_buffers": "forward_sync_buffers"}  # torch's, before 2.13
    elsewhere: ClassVar[Mapping[str, str]] = {
        "device_ids": "the run places the model: Run(device=...).",
        "output_device": "the run places the model: Run(device=...).",
        "process_group": "all ranks of the run form the group: Run(transport=...).",
        "device_mesh": "all ranks of the run form the group: Run(transport=...).",
        "mixed_precision": "Run(precision='bf16'), or 'fp16'.",
        "init_sync": "nothing is copied: all ranks build the same model after Run(seed=...), which is checked.",
        "check_reduction": "leave it out: it has no effect in torch.",
        "dim": "leave it out: DDP has one device a process, and scatters nothing.",
    }

    find_unused_parameters: bool = option(False, "Allow parameters that get no gradient.")
    forward_sync_buffers: bool = option(True, "Bring rank 0's buffers to all before every forward pass.")
    gradient_as_bucket_view: bool = option(False, "Gradients are views into the buckets: one copy less.")
    static_graph: bool = option(False, "The same parameters are used in every step.")
    bucket_cap_mb: float | None = option(None, "Size of a bucket in MiB.", of=MEBIBYTES, usual="torch's, 25")
    comm_hook: str = option("none", "Compress gradients on their way.", "none", "bf16", "fp16", "powersgd")
    powersgd_rank: int = option(1, "Rank of PowerSGD's approximation.", of=Count(1, 65_536))


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduceOptions(PreciseOptions):
    """Averaging by hand after backward."""

    name: ClassVar[str] = "allreduce"
    summary: ClassVar[str] = "averaging by hand, one all-reduce a parameter; ring, tree; local SGD"
    implementation: ClassVar[str] = "allreduce:AllReduce"
    meets_in_loss: ClassVar[bool] = True

    algorithm: str = option(
        "ring", "How the sums are made; naive_ring is kept to show what is wrong with it.",
        "ring", "tree", "halving_doubling", "naive_ring", "torch",
    )  # fmt: skip
    bucket_mb: float | None = option(
        None, "Reduce in buckets of so many MiB.", of=MEBIBYTES, usual="parameter by parameter"
    )
    predivide: float | None = option(
        None, "Divide gradients by this before the sum, by the rest after it.", of=Amount(1e-9, 1e9),
        usual="wholly before",
    )  # fmt: skip
    sync_every: int = option(1, "Local SGD: update alone, average parameters every so many steps.", of=STEPS)

    @property
    def shares_gradients(self) -> bool:
        return self.sync_every == 1


@dataclass(frozen=True, kw_only=True, slots=True)
class DPOptions(PreciseOptions):
    """DataParallel in one process."""

    name: ClassVar[str] = "dp"
    summary: ClassVar[str] = "DataParallel: one process, several devices (on the CPU threads)"
    implementation: ClassVar[str] = "data_parallel:DataParallel"
    most_ranks: ClassVar[int | None] = 1

    devices: int = option(2, "GPUs of the process, or threads on the CPU.", of=DEVICES)
    dim: int = option(0, "Dimension of inputs and outputs that is the batch.", of=Count(0, 63))

    def __post_init__(self) -> None:
        StrategyOptions.__post_init__(self)
        if self.devices < 2:
            raise ConfigError(
                f"strategy {self.name} scatters over several devices, got devices {self.devices}. "
                "Hint: --devices 2 or more; for one device --strategy exact."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class BalancedDPOptions(DPOptions):
    """DataParallel with a smaller share for the first device."""

    name: ClassVar[str] = "balanced_dp"
    summary: ClassVar[str] = "DataParallel whose first device takes fewer samples: gpu0_bsz, batch_chunk"

    gpu0_bsz: int = option(
        -1, "Samples of a step that the first device takes, shared out over its passes; -1: as many as the others.",
        of=Count(-1, 10**9, "samples"),
    )  # fmt: skip
    batch_chunk: int = option(1, "Cut every batch into so many forward passes that add up.", of=MICRO_BATCHES)

    @property
    def first(self) -> int | None:
        """Samples of a forward pass that the first device takes; None: as `dp` shares them out."""
        return None if self.gpu0_bsz < 0 else self.gpu0_bsz // self.batch_chunk

    def default_replicas(self, world_size: int) -> int:
        """See `StrategyOptions.default_replicas`: one a chunk."""
        return self.batch_chunk * self.accumulate


@dataclass(frozen=True, kw_only=True, slots=True)
class FSDPOptions(StrategyOptions):
    """torch's FSDP2 with an exact reduction."""

    name: ClassVar[str] = "fsdp"
    summary: ClassVar[str] = "sharded weights and optimizer state (torch FSDP2), with the bits of exact"
    implementation: ClassVar[str] = "sharded.fsdp:FSDP"
    is_exact: ClassVar[bool] = True
    weighs: ClassVar[bool] = True
    scored: ClassVar[tuple[str, ...]] = ("param_dtype",)  # how modules are grouped changes no bit
    is_sharded: ClassVar[bool] = True
    needs_processes: ClassVar[bool] = True

    wrap: tuple[str, ...] | None = option(
        None, "Classes of modules that are gathered one at a time.", usual="the model's direct children"
    )
    offload: bool = option(False, "Keep the slices in the CPU's memory (GPUs only).")
    param_dtype: str = option("fp32", "Compute in fp32 or bf16; slices and sums stay fp32.", "fp32", "bf16")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelParallelOptions(StrategyOptions):
    """Layers on several devices."""

    name: ClassVar[str] = "model_parallel"
    summary: ClassVar[str] = "layers on several devices of each process, by a map or by cost"
    implementation: ClassVar[str] = "model_parallel:ModelParallel"
    weighs: ClassVar[bool] = True
    meets_in_loss: ClassVar[bool] = True

    devices: int = option(2, "Devices of each process (on the CPU logical ones).", of=Count(2, 4096, "devices"))
    map: tuple[float, ...] | None = option(
        None, "Device of each child of the model, as 0,0,1.", of=Amount(0, 4095), usual="by cost"
    )
