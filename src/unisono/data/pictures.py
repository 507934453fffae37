"""Public name of `unisono.data.sets.pictures`."""

from unisono.data.sets.pictures import *  # noqa: F403
