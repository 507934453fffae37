"""A step that is computed again after a resume is what it was, or it is said, once."""

import json

from unisono.observe.chain import parse_all
from unisono.observe.recomputed import Recomputed


def line(step, **values):
    kept = {"step": step, "loss": (0.5).hex(), "gradient": "aa", "lr": (0.1).hex(), "previous": "00"}
    return json.dumps(kept | values).encode()


def test_equal_steps_say_nothing():
    """Nor do steps that nobody had computed, half a line, and lines that only another version wrote otherwise."""
    again = Recomputed(parse_all(b"\n".join([*map(line, range(1, 6)), b'{"step": 6, "l'])), 3)
    assert [again.difference(step, line(step)) for step in range(4, 8)] == [""] * 4
    again = Recomputed(parse_all(line(4, previous="11")), 3)
    assert again.difference(4, line(4, evaluations=2)) == ""


def test_a_difference_is_said_once():
    """The first step is named, with its fields; what follows from it is not said again."""
    again = Recomputed(parse_all(b"\n".join(line(step) for step in range(1, 7))), 3)
    assert again.difference(4, line(4)) == ""
    told = again.difference(5, line(5, loss=(0.25).hex(), gradient="bb", previous="22"))
    assert told.startswith(
        "step 5 was computed again after the resume, and is another than before in loss, gradient (loss 0.5 before, "
        "0.25 now). "
    )
    assert "run.register" in told and "unisono diff" in told
    assert again.difference(6, line(6, gradient="cc")) == ""


def test_lines_of_other_programs():
    """Whatever a line holds, it is compared, not trusted."""
    again = Recomputed(parse_all(b'{"step": 4, "loss": [1]}\n{"step": 5, "loss": "x"}'), 3)
    assert "in loss (loss [1] before, 0.5 now)" in again.difference(4, line(4))
