"""`set_seed`, as accelerate has it."""

from unisono.compat.seeds import SEEDS
from unisono.errors import ConfigError


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Set the run's seed, and that of what is drawn from torch's, Python's and NumPy's generators until `prepare`.

    Args:
        seed: Of everything random.
        device_specific: Refused: what is drawn is keyed by replica already, and ranks must build the same model.
        deterministic: Without effect: runs always are.

    Raises:
        ConfigError: After ``prepare``, or with `device_specific`.
    """
    if device_specific:
        raise ConfigError(
            "device_specific gives every process a seed of its own, and ranks must build the same model. Hint: leave "
            "it out: what each micro-batch draws differs anyway."
        )
    SEEDS.set(seed, prepare="accelerator.prepare()")
