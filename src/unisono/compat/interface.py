"""What both interfaces over a run are made of: what they tell of the loop's turns, models, and the one optimizer."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from unisono.compat.parts import PreparedOptimizer
from unisono.compat.turns import Turns
from unisono.errors import ConfigError
from unisono.strategies.precision import MixedPrecision
from unisono.train.run import Run


class Interface:
    """The part that has the same names in each."""

    _underneath: ClassVar[str]  #: How a script reaches the run.
    _run: Run
    _turns: Turns
    _models: list[nn.Module]
    _trained: nn.Module | None = None
    _optimizer: PreparedOptimizer | None = None

    @property
    def sync_gradients(self) -> bool:
        """Whether the batch is whole with this turn: the gradients are those of all processes, and `step` acts."""
        return self._turns.is_synced

    @property
    def completed_steps(self) -> int:
        """Updates that are done, also by earlier launches."""
        return self._turns.done

    @property
    def last_loss(self) -> float:
        """Mean loss over the whole batch of the last step, the same on all ranks and for any number of them."""
        return self._turns.loss

    @property
    def device(self) -> torch.device:
        """Of this rank."""
        return self._run.device

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first rank of each host."""
        if self._run.world.local_rank == 0:
            print(*args, **kwargs)  # noqa: T201 - what it is for

    def _wait(self, what: str) -> None:
        self._turns.refuse_alone(what)
        self._run.transport.barrier()

    def _first(self, wait: Callable[[], None], *, is_first: bool) -> Iterator[None]:
        """Let some ranks run the block of a context manager before the others."""
        if not is_first:
            wait()
        yield
        if is_first:
            wait()

    def _take_model(self, model: nn.Module, *, in_bf16: bool) -> nn.Module:
        model.to(self.device)
        if in_bf16:
            forward = model.forward
            model.forward = functools.wraps(forward)(MixedPrecision("bf16", self.device.type).around(forward))
        self._models.append(model)
        return model

    def _take_optimizer(self, optimizer: Optimizer, after: Callable[[], None] = lambda: None) -> PreparedOptimizer:
        """Take over the optimizer, and with it the model that it is of, which is trained from now on; collective.

        Raises:
            ConfigError: It is a second one, or its model has not been taken over.
        """
        if self._optimizer is not None:
            refuse_second_optimizer()
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        trained = [model for model in self._models if any(id(each) in own for each in model.parameters())]
        if len(trained) != 1:
            prepare = self._turns.words.prepare
            raise ConfigError(
                f"expected an optimizer of the parameters of one model that {prepare} has taken over, got one of "
                f"{len(trained)}. Hint: {prepare[:-1]}model, optimizer), the model first or beside; several models "
                "that learn are one nn.Module, as nn.ModuleDict is."
            )
        self._run.prepare(trained[0], optimizer)
        self._trained, self._optimizer = trained[0], PreparedOptimizer(optimizer, self._turns, after)
        return self._optimizer

    def _is_training(self) -> bool:
        return self._trained is not None and self._trained.training

    def __getattr__(self, name: str) -> Any:
        kind = type(self)
        raise AttributeError(
            f"{kind.__module__.rpartition('.')[0]}.{kind.__name__} has no {name!r}. Hint: docs/compat.md says what it "
            f"has; {kind._underneath} is the run underneath."
        )


def refuse_second_optimizer() -> NoReturn:
    """Say why a loop over micro-batches has one optimizer."""
    raise ConfigError(
        "a second optimizer cannot act exactly in a loop over micro-batches: the update of one would fall between the "
        "forward passes of the other's. Hint: one optimizer with a group of parameters for each model, over one "
        "nn.Module that holds them; or a run's own loop, see docs/several-models.md."
    )
