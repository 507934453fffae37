"""Public name of `unisono.data.sets.images`."""

from unisono.data.sets.images import *  # noqa: F403
