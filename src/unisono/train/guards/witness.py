"""In which share of the steps a run has a witness, and which runs can have none."""

from unisono.errors import ConfigError
from unisono.launchers.spec import check_witness
from unisono.options.quantities import FRACTION
from unisono.strategies.options import ExactOptions, StrategyOptions
from unisono.world import World


def rate_of(witness: float | None, world: World, options: StrategyOptions) -> float:
    """Return in which share of the steps a replica is computed twice, from what `Run` is given.

    Raises:
        ConfigError: It is no share; there is one rank; or with this strategy other ranks have other bits.
    """
    rate = float(FRACTION.take("witness", world.witness if witness is None else witness))
    if rate:
        check_witness(rate, world.world_size)
        if not isinstance(options, ExactOptions) or options.island_steps is not None:
            got = "island_steps" if isinstance(options, ExactOptions) else f"strategy {options.name}"
            raise ConfigError(
                f"witness {rate:g}: another rank can compute a replica with strategy exact alone, got {got}. "
                "Hint: --strategy exact, or leave --witness out."
            )
    return rate
