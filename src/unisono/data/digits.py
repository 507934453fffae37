"""Public name of `unisono.data.sets.digits`."""

from unisono.data.sets.digits import *  # noqa: F403
