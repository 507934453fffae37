"""Branches that are known not to be taken are left out of a source; all others stay."""

import argparse
import ast
import dataclasses

import pytest

from unisono.determinism.source.taken import Taken


@dataclasses.dataclass
class Settings:
    decay: float = 0.0


class Odd:
    """What tells of each question that it is asked."""

    def __bool__(self):
        raise AssertionError("asked")

    __eq__ = __bool__
    __hash__ = None

    @property
    def on(self):
        raise AssertionError("asked")


TEXT = """
import inspect

def change():
    global MOVING
    MOVING = True

def main(args, settings, odd, local=True):
    for epoch in range(1):
        args.moved = counted = epoch
        return inspect.currentframe()
        if {loop}:
            first()
        else:
            second()
        run.step(batch, lambda {given}: first() if {function} else second())

def beside({given}):
    return first() if {beside} else second()
"""


def branches(given="micro", **tests):
    """Return which branches stay: those of a condition in the loop, in its loss, or in a function beside it."""
    text = TEXT.format(given=given, **{"loop": "odd", "function": "odd", "beside": "odd", **tests})
    names = {"ON": True, "OFF": False, "KIND": "sgd", "MOVING": False, "TABLE": {"plain": True}, "odd": Odd()}
    exec(compile(text, "made.py", "exec"), names)
    frame = names["main"](argparse.Namespace(warm=False, steps=3, moved=0), Settings(), Odd())
    shown = ast.unparse(Taken(frame).visit(ast.parse(text)))
    return 3 - shown.count("second()") == 1, 3 - shown.count("first()") == 1


HOLDING = [
    "ON", "not OFF", "KIND == 'sgd'", "KIND in ('sgd', 'adam')", "args.steps > 2", "args.warm is not None",
    "TABLE['plain']", "settings.decay == 0", "ON or args.moved", "True", "KIND != 'adam' and not args.warm", "local",
]  # fmt: skip


@pytest.mark.parametrize("test", HOLDING)
@pytest.mark.parametrize("where", ["loop", "function"])
def test_what_holds(test, where):
    """And what does not, the other way round."""
    assert branches(**{where: test}) == (True, False)
    assert branches(**{where: f"not ({test})"}) == (False, True)


def test_a_function_beside_the_loop_sees_globals_alone():
    assert branches(beside="ON") == (True, False)
    assert branches(beside="local") == (False, False)


@pytest.mark.parametrize(
    "test",
    ["MOVING", "counted", "args.moved", "epoch == 0", "odd", "odd == 1", "odd.on", "call()", "ON and odd", "unheard_of",
     "TABLE['other']", "TABLE", "args", "KIND > 3", "args.steps in odd"],
)  # fmt: skip
@pytest.mark.parametrize("where", ["loop", "function"])
def test_what_is_not_known_stays(test, where):
    """Other values in the loop, objects that would be called, and what fails."""
    assert branches(**{where: test}) == (False, False)


def test_a_parameter_hides_a_global():
    assert branches(given="ON", function="ON") == (False, False)
    assert branches(given="ON", beside="ON") == (False, False)
