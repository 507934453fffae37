"""What the program calls in place of its model, where a strategy does the wrapping."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Self, final

from torch import nn


def _of_plain(name: str) -> Any:
    """Return a method that does what the plain model's does."""

    def call(front: "Front", *args: Any, **kwargs: Any) -> Any:
        return getattr(front.__dict__["plain"], name)(*args, **kwargs)

    return call


@final
class Front(nn.Module):
    """Forwards calls to what the strategy chooses, and everything else to the plain model.

    Its `state_dict` has the plain model's names: no ``module.`` in front.
    """

    call: Callable[..., Any]  #: What a call does; the strategy changes it between training and evaluation.

    def __init__(self, model: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["plain"] = model  # not a submodule: it keeps its own names
        self.__dict__["call"] = call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Do what the strategy has chosen."""
        return self.call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["plain"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "call":
            self.__dict__[name] = value
        else:
            setattr(self.__dict__["plain"], name, value)

    def __repr__(self) -> str:
        return repr(self.__dict__["plain"])

    def train(self, mode: bool = True) -> Self:
        self.__dict__["plain"].train(mode)
        return self

    state_dict = _of_plain("state_dict")
    load_state_dict = _of_plain("load_state_dict")
    named_parameters = _of_plain("named_parameters")
    named_buffers = _of_plain("named_buffers")
    named_modules = _of_plain("named_modules")


@contextlib.contextmanager
def calling(front: Front, call: Callable[..., Any]) -> Iterator[None]:
    """Let a call of the front do something else in this block."""
    before, front.call = front.call, call
    try:
        yield
    finally:
        front.call = before
