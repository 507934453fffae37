"""Builds the strategy that a run's options ask for; imports nothing of the other strategies."""

import importlib

from torch import nn
from torch.optim import Optimizer

from unisono.strategies.base import Strategy, StrategyContext
from unisono.strategies.options import StrategyOptions


def build(options: StrategyOptions, model: nn.Module, optimizer: Optimizer, context: StrategyContext) -> Strategy:
    """Return the strategy at work on a model and its optimizer; collective."""
    module, _, name = options.work.partition(":")
    kind: type[Strategy] = getattr(importlib.import_module(f"unisono.strategies.{module}"), name)
    return kind(model, optimizer, context, options)
