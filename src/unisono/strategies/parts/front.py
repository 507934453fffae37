"""What the program calls in place of its model, where a strategy does the wrapping."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, final

from torch import Tensor, nn


@final
class Front(nn.Module):
    """Forwards calls to what the strategy chooses, and everything else to the plain model.

    Its `state_dict` has the plain model's names: no ``module.`` in front.

    Args:
        model: The plain model.
        call: What a call does at first.

    Attributes:
        call: What a call does; the strategy changes it between training and evaluation.
    """

    call: Callable[..., Any]

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
        """See `nn.Module.train`."""
        self.__dict__["plain"].train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """See `nn.Module.state_dict`."""
        return self.__dict__["plain"].state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """See `nn.Module.load_state_dict`."""
        return self.__dict__["plain"].load_state_dict(state_dict, strict, assign)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """See `nn.Module.named_parameters`."""
        found: Iterator[tuple[str, nn.Parameter]] = self.__dict__["plain"].named_parameters(*args, **kwargs)
        return found

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """See `nn.Module.named_buffers`."""
        found: Iterator[tuple[str, Tensor]] = self.__dict__["plain"].named_buffers(*args, **kwargs)
        return found

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """See `nn.Module.named_modules`."""
        found: Iterator[tuple[str, nn.Module]] = self.__dict__["plain"].named_modules(*args, **kwargs)
        return found
