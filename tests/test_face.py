"""The public face says what it takes: attributes of `Run` in its help, and no type left open without a reason."""

import inspect
import pydoc
from collections.abc import Iterator
from typing import Any

import pytest

import unisono

#: where a type is left open, and why
OPEN = {
    "ArrayDataset arrays": "NumPy's arrays, tensors, lists",
    "Curriculum difficulty": "a list, an array of NumPy, a tensor, or a function of the sample",
    "DataPartitioner data": "whatever has a length, as in PyTorch's tutorial",
    "Partition data": "whatever has a length, as in PyTorch's tutorial",
    "Stream source": "an iterable, or a function that returns one; checked when it is read",
    "TorchMetric metric": "torchmetrics need not be installed",
    "Curriculum.order source": "whatever has a length: a data set, a loader's source",
    "Mixture.order source": "whatever has a length: a data set, a loader's source",
    "Weighted.order source": "whatever has a length: a data set, a loader's source",
    "Weighted.balanced classes": "a list, an array of NumPy, a tensor",
    "Weighted weights": "a list, an array of NumPy, a tensor, or a function of the epoch",
    "Run.prepare model": "its overloads have the types",
    "Run.prepare optimizer": "its overloads have the types",
    "Run.prepare scheduler": "whatever has step() and a state: PyTorch's schedulers have no common type",
    "Run.prepare return": "its overloads have the types",
    "Run.register part": "whatever has state_dict() and load_state_dict(); checked when it is called",
    "Trainer scheduler": "whatever has step() and a state: PyTorch's schedulers have no common type",
    "Trainer.predict return": "tensors in the structure of the model's outputs",
    "DistributedSampler dataset": "whatever has a length, as in PyTorch",
    "strategy options": "those of the strategy that is named; its dataclass checks each",
}
#: attributes that are the run's own affair
INNER = {"between", "first_look"}


def open_types(owner: str, thing: object) -> Iterator[str]:
    """Return parameters and results of a function, or of a class's methods, whose type is `Any`."""
    if inspect.isclass(thing):
        names = [name for name in dir(thing) if not name.startswith("_") and name not in dir(Exception)]
        for name in ["__init__", *names]:
            inside = inspect.getattr_static(thing, name)
            inside = getattr(inside, "fget", None) or getattr(inside, "__func__", inside)
            if inspect.isfunction(inside):
                yield from open_types(owner if name == "__init__" else f"{owner}.{name}", inside)
    elif inspect.isfunction(thing):
        annotations = inspect.get_annotations(inspect.unwrap(thing))
        yield from (f"{owner} {name}" for name, kind in annotations.items() if kind is Any or kind == "Any")


def test_no_type_is_left_open_without_a_reason():
    """In the public functions, and the methods of the public classes; every reason is still needed."""
    found = {place for name in unisono.__all__ for place in open_types(name, getattr(unisono, name))}
    assert found == set(OPEN)


class Control:
    def method(self, given: Any, typed: int) -> Any:
        return given

    @property
    def value(self) -> Any:
        return 1


def test_an_open_type_is_found():
    """The control."""
    assert sorted(open_types("C", Control)) == ["C.method given", "C.method return", "C.value return"]


@pytest.fixture
def run():
    with unisono.Run(replicas=2) as found:
        yield found


def undocumented(run: unisono.Run, told: str) -> set[str]:
    return {name for name in vars(run) if not name.startswith("_") and f"  {name}: " not in told} - INNER


def test_help_names_the_attributes_of_a_run(run):
    """`help(unisono.Run)` has a line for each public attribute, and each of its lines is an attribute."""
    told = pydoc.plain(pydoc.render_doc(unisono.Run)).replace("|", " ")
    assert undocumented(run, told) == set()
    section = told.partition("Attributes:\n")[2].partition("Raises:\n")[0]
    named = [line.split(":")[0].strip() for line in section.splitlines() if ": " in line]
    assert len(named) > 10
    assert [name for name in named if not hasattr(run, name)] == []
    assert undocumented(run, told.replace("  world: ", "")) == {"world"}  # the control
