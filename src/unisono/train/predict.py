"""Prediction: the outputs of every sample, in order, shared out over the ranks and gathered on all of them."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from unisono.collectives.placement import cut
from unisono.collectives.rows import RowKind, gather_rows
from unisono.collectives.transport import Transport
from unisono.errors import ConfigError, RankDivergence

Output = Callable[[Any], Any]
"""From a micro-batch to a tensor with a row for each sample, or a tuple, list or dictionary of such tensors."""

_Kind = list[Any]
"""A structure as JSON: ``"tensor"``, ``"tuple"`` or ``"dict"``; then name, dtype and row shape of each tensor."""


def inputs_of(micro: Any) -> Any:
    """Return what the model is called with: the inputs of a pair, the only field of a micro-batch, or all of it."""
    if isinstance(micro, tuple | list) and len(micro) == 1:
        return micro[0]
    return getattr(micro, "x", micro)


def pair_of(micro: Any) -> tuple[Any, Any]:
    """Return inputs and targets of a micro-batch; `ConfigError` where it is not a pair."""
    try:
        return micro.x, micro.y
    except AttributeError:
        what = type(micro).__name__
        if isinstance(micro, dict | tuple | list):
            what += f" of {', '.join(map(str, micro)) if isinstance(micro, dict) else len(micro)}"
        raise ConfigError(
            f"a trainer expects micro-batches of inputs and targets, got a {what}. "
            "Hint: transform= gets a whole sample and returns one, lambda xy: (change(xy[0]), xy[1]); collate= may "
            "return (inputs, targets); anything else can be trained with run.step()."
        ) from None


@final
class Outputs:
    """Keeps, in host memory, what the batches of this rank give, and puts those of all ranks together.

    The batches are shared out as `evaluate` does it: contiguous runs, in rank order.
    """

    def __init__(self, num_samples: int, batch_size: int, transport: Transport) -> None:
        shares = cut(-(-num_samples // batch_size), transport.world_size)
        self._rows = [min(share.stop * batch_size, num_samples) - share.start * batch_size for share in shares]
        self._rows = [max(rows, 0) for rows in self._rows]
        mine = shares[transport.rank]
        self._sizes = [min(batch_size, num_samples - number * batch_size) for number in mine]
        self._transport = transport
        self._kinds: list[_Kind] = []
        self._parts: list[list[Tensor]] = []

    def add(self, output: Any) -> None:
        """Keep the output of the next batch; one that only repeats work, to keep ranks in step, is passed over."""
        turn = len(self._parts)
        if turn == len(self._sizes):
            return
        structure, named = _taken_apart(output)
        for name, leaf in named:
            if not isinstance(leaf, Tensor) or leaf.ndim == 0 or len(leaf) != self._sizes[turn]:
                got = f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
                raise ConfigError(
                    f"expected a tensor with {self._sizes[turn]} rows, one for each sample, as {name}, got {got}. "
                    "Hint: predict(output=lambda micro: ...) chooses what is kept."
                )
        kind = [structure, *([name, str(leaf.dtype)[6:], list(leaf.shape[1:])] for name, leaf in named)]
        if kind not in self._kinds:
            self._kinds.append(kind)
        self._parts.append([leaf.detach().to("cpu", copy=True) for _, leaf in named])

    def gather(self) -> Any:
        """Return the outputs of all samples, in the data set's order, on every rank; collective.

        Raises:
            RankDivergence: Batches gave outputs of different structures, dtypes or row shapes; on all ranks.
        """
        everyone = self._transport.all_gather_json(self._kinds)
        told = [(rank, kind) for rank, kinds in enumerate(everyone) for kind in kinds]
        kind = told[0][1]
        for rank, other in told:
            if other != kind:
                raise RankDivergence(
                    f"expected outputs of one structure, dtype and row shape, got {kind} on rank 0 and {other} on "
                    f"rank {rank}. Hint: pad to one length, in collate or in predict(output=...)."
                )
        structure, *described = kind
        tensors = {name: self._gather(number, *how) for number, (name, *how) in enumerate(described)}
        if structure == "tensor":
            return tensors["output"]
        return tuple(tensors.values()) if structure == "tuple" else tensors

    def _gather(self, number: int, dtype_name: str, shape: list[int]) -> Tensor:
        """Return field `number` of all samples."""
        kind = RowKind(dtype_name, shape, torch.device("cpu"))
        own = torch.cat([part[number] for part in self._parts] or [kind.empty(0)])
        if len(self._rows) == 1:
            return own
        [found] = gather_rows([own], [kind], self._rows, self._transport) or []
        return found


def outputs_of(run: Any, dataset: Any, chosen: Output, num_samples: int, *, batch_size: int, **how: Any) -> Any:
    """Return what `chosen` gives for a data set's first `num_samples`; collective, see `Run.evaluate` for the rest."""
    kept = Outputs(num_samples, batch_size, run.transport)

    def keep(micro: Any) -> Any:
        kept.add(run.precision.widened(chosen(micro)))
        return None, None

    run.evaluate(dataset, keep, {}, batch_size=batch_size, **how)
    return kept.gather()


def _taken_apart(output: Any) -> tuple[str, list[tuple[str, Any]]]:
    if isinstance(output, dict):
        return "dict", [(str(name), value) for name, value in output.items()]
    if isinstance(output, tuple | list):
        return "tuple", [(f"output[{index}]", value) for index, value in enumerate(output)]
    return "tensor", [("output", output)]
