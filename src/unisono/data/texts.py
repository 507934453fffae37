"""Public name of `unisono.data.sets.texts`."""

from unisono.data.sets.texts import *  # noqa: F403
