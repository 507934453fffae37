"""The exchanges of one transport: they end with it, and one of them sums whatever comes outside of steps."""

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

from torch import Tensor

from unisono.collectives.coding.rounding import Rounding
from unisono.collectives.exchange import Partials
from unisono.system.leaving import leave_before_groups

if TYPE_CHECKING:
    from unisono.collectives.process_groups.exchange import PieceExchange


@final
class Exchanges:
    """Makes exchanges, and ends them."""

    def __init__(self, make: "Callable[[], PieceExchange]") -> None:
        self._make = make
        self._made: weakref.WeakSet[PieceExchange] = weakref.WeakSet()
        self._one_off: PieceExchange | None = None
        leave_before_groups(self.close)

    def new(self) -> "PieceExchange":
        """Return a new exchange."""
        exchange = self._make()
        self._made.add(exchange)
        return exchange

    def reduce(
        self, partials: Partials, placement: Sequence[range], leaves: int, out: Tensor,
        rounding: Rounding | None = None,
    ) -> None:  # fmt: skip
        """Sum one buffer; see `reduce.tree_all_reduce`."""
        if self._one_off is None:
            self._one_off = self.new()
        self._one_off.reduce(partials, placement, leaves, out, rounding)

    def open(self) -> "list[PieceExchange]":
        """Return those of which something may still be on its way."""
        return [exchange for exchange in self._made if exchange.is_open]

    def close(self) -> None:
        """Let no thread wait in any of them; safe to call twice."""
        for exchange in self._made:
            exchange.close()
        self._one_off = None
