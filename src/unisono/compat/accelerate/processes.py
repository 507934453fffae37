"""What an ``Accelerator`` knows of processes: who is the first, what they wait for, what they tell each other."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from unisono.collectives.placement import cut
from unisono.compat import gathering
from unisono.compat.accelerate.loaders import Evaluation
from unisono.compat.accelerate.settings import DistributedType
from unisono.compat.interface import Interface
from unisono.determinism.devices import is_gpu
from unisono.train.run import Run


class Processes(Interface):
    """The part of `Accelerator` that needs no model."""

    run: Run  #: The run underneath: its ``seed``, ``replicas``, ``directory``, ``fingerprint()``.
    num_processes: int  #: V: processes of the script, which ranks play; the same on any number of them.
    _evaluation: Evaluation
    _is_triggered = False

    @property
    def process_index(self) -> int:
        """This rank; there are ``run.world.world_size`` of them, at most `num_processes`."""
        return self.run.world.rank

    @property
    def local_process_index(self) -> int:
        """This rank among those of its host."""
        return self.run.world.local_rank

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self.run.world.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first rank of its host."""
        return self.run.world.local_rank == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last rank."""
        return self.run.world.rank == self.run.world.world_size - 1

    @property
    def use_distributed(self) -> bool:
        """Whether there are several processes, computed by however many ranks."""
        return self.num_processes > 1

    @property
    def distributed_type(self) -> DistributedType:
        """``NO`` for one process, else ``MULTI_CPU`` or ``MULTI_GPU``."""
        if not self.use_distributed:
            return DistributedType.NO
        return DistributedType.MULTI_GPU if is_gpu(self.device) else DistributedType.MULTI_CPU

    def on_main_process(self, function: Any) -> Any:
        """Let a function run on the main process only; it returns None elsewhere."""
        return self._only(function, lambda: self.is_main_process)

    def on_local_main_process(self, function: Any) -> Any:
        """Let a function run on the main process of each host only."""
        return self._only(function, lambda: self.is_local_main_process)

    def on_last_process(self, function: Any) -> Any:
        """Let a function run on the last rank only."""
        return self._only(function, lambda: self.is_last_process)

    def on_process(self, function: Any = None, process_index: int = 0) -> Any:
        """Let a function run on one rank only; a decorator without `function`."""
        if function is None:
            return functools.partial(self.on_process, process_index=process_index)
        return self._only(function, lambda: self.process_index == process_index)

    @staticmethod
    def _only(function: Any, is_here: Callable[[], bool]) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if is_here() else None

        return call

    def wait_for_everyone(self) -> None:
        """Return on no rank before all have called; collective."""
        self._wait("wait_for_everyone()")

    @contextlib.contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the main process run the block before the others; collective."""
        yield from self._first(self.wait_for_everyone, is_first=self.is_main_process)

    @contextlib.contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Let the main process of each host run the block before the others; collective."""
        yield from self._first(self.wait_for_everyone, is_first=self.is_local_main_process)

    @contextlib.contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Hand each rank its part of a list, tuple, tensor, or of every value of a dictionary.

        Args:
            inputs: The same on all ranks.
            apply_padding: Fill up the shorter parts by their last item, so that all can be gathered.
        """
        if isinstance(inputs, dict):
            yield {name: self._part(value, apply_padding) for name, value in inputs.items()}
        else:
            yield self._part(inputs, apply_padding)

    def _part(self, items: Any, is_padded: bool) -> Any:
        parts = cut(len(items), self.run.world.world_size)
        mine = parts[self.process_index]
        own = items[mine.start : mine.stop]
        missing = len(parts[0]) - len(mine) if is_padded else 0
        if not missing or not len(items):
            return own
        last = items[max(mine.stop, 1) - 1 :][:1]
        return torch.cat([own, *[last] * missing]) if isinstance(own, torch.Tensor) else own + last * missing

    def gather(self, tensor: Any) -> Any:
        """Return the tensors of all ranks, row under row, in rank order; collective.

        Unlike accelerate's, rows may be unequal in number. In a training loop for a step's last turn only.

        Raises:
            PlaceError: In another turn of a training loop.
            RankDivergence: The tensors differ in dtype or in the shape of a row.
        """
        self._turns.refuse_alone("gather(...)")
        return gathering.gather(tensor, self.run.transport)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Return what all ranks have for their batches of a round, without what was only repeated; collective.

        Over a whole evaluation these are the outputs of each sample once, in the data's order.

        Args:
            input_data: Tensors, also nested; or what JSON knows, as a list with an item for each sample.
            use_gather_object: Take the second way in any case, which tensors cannot go.

        Raises:
            ConfigError: It is neither.
            PlaceError: In a turn of a training loop that is not the step's last.
        """
        self._turns.refuse_alone("gather_for_metrics(...)")
        transport, counts = self.run.transport, self._evaluation.counts
        mine = counts is None or counts[self.process_index]
        if use_gather_object or not gathering.is_of_tensors(input_data):
            return gathering.gather_objects(input_data, transport, counts=mine)
        kept = input_data if mine else gathering.apply(lambda tensor: torch.atleast_1d(tensor)[:0], input_data)
        return gathering.gather(kept, transport)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return tensors added up over the ranks, or their ``mean``; collective.

        Raises:
            ConfigError: `reduction` is none of ``sum``, ``mean``, ``none``.
            PlaceError: In a turn of a training loop that is not the step's last.
        """
        self._turns.refuse_alone("reduce(...)")
        reduced = gathering.reduce(tensor, self.run.transport, reduction)
        return reduced if scale == 1.0 else gathering.apply(lambda each: each * scale, reduced)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Return tensors as long along `dim` as the longest of all ranks; collective."""
        self._turns.refuse_alone("pad_across_processes(...)")
        return gathering.pad(tensor, self.run.transport, dim=dim, index=pad_index, first=pad_first)

    def set_trigger(self) -> None:
        """Let the next `check_trigger` of all ranks say yes."""
        self._is_triggered = True

    def check_trigger(self) -> bool:
        """Return whether some rank has called `set_trigger` since the last time; collective."""
        self._turns.refuse_alone("check_trigger()")
        was, self._is_triggered = self._is_triggered, False
        return any(self.run.transport.agree("check_trigger", int(was)))
