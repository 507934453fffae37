"""Every public method says what it does, or overrides one that does."""

import importlib
import inspect
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
NAMES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if path.stem != "__main__"
)


def silent(module: types.ModuleType) -> Iterator[str]:
    """Return the public methods of a module's public classes without a docstring, their bases' included."""
    for name, found in vars(module).items():
        if not inspect.isclass(found) or found.__module__ != module.__name__ or name.startswith("_"):
            continue
        for method, value in vars(found).items():
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            # What another function has made is no definition of a method.
            is_method = isinstance(function, types.FunctionType) and function.__name__ == method
            if is_method and not method.startswith("_") and not inspect.getdoc(getattr(found, method)):
                yield f"{module.__name__}.{name}.{method}"


def test_public_methods_explain_themselves():
    """In every file of the package."""
    assert len(NAMES) > 300
    assert [method for name in NAMES for method in silent(importlib.import_module(name))] == []


class Base:
    def told(self):
        """Do it."""

    @property
    def value(self):
        """A value."""


class Child(Base):
    def told(self):
        return 1

    @property
    def value(self):
        return 1

    def new(self):
        return 2


@pytest.mark.parametrize("cls", [Child])
def test_a_silent_method_is_found(cls):
    """The control: what overrides inherits its text, what is new has none."""
    assert list(silent(importlib.import_module(cls.__module__))) == [f"{cls.__module__}.Child.new"]
