"""Lightning Fabric's interface, for scripts that keep their loop and change ``from lightning.fabric import Fabric``."""

from unisono.compat.fabric.fabric import Fabric as Fabric
from unisono.compat.fabric.settings import seed_everything as seed_everything

__all__ = ["Fabric", "seed_everything"]
