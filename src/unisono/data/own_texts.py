"""Public name of `unisono.data.sets.own_texts`."""

from unisono.data.sets.own_texts import *  # noqa: F403
