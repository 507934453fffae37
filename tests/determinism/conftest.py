"""Tiny trainings for tests of what runs change in torch."""

from train.conftest import toy

__all__ = ["toy"]
