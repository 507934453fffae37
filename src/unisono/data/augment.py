"""Public name of `unisono.data.sets.augment`."""

from unisono.data.sets.augment import *  # noqa: F403
