"""``metrics.jsonl`` has one line a step, whenever its values come, and none twice after an interruption."""

import json

import pytest

from unisono.observe.metric_lines import NAME, MetricLines
from unisono.system.directory import Directory


@pytest.fixture
def home(tmp_path):
    with Directory.open(tmp_path) as home:
        yield home


def opened(home, step=0, *, writes=True, waits=True):
    lines = MetricLines()
    lines.open(home, step, writes=writes)
    lines.waits = waits
    return lines


def written(home):
    """Return step and values of each line."""
    return [(line["step"], line["values"]) for line in map(json.loads, (home.read(NAME) or b"").splitlines())]


def test_one_line_a_step(home):
    """What comes for one step stands in one line, in order, the last value of a name; it is written with the next."""
    lines = opened(home)
    lines.add(0, 0, {"before": 1.0})
    lines.add(1, 0, {"loss": 0.5, "lr": 0.1})
    assert written(home) == [(0, {"before": 1.0})]
    lines.add(1, 0, {"accuracy": 0.25, "loss": 0.75})
    lines.add(3, 1, {})
    assert written(home) == [(0, {"before": 1.0})]
    lines.flush()
    lines.flush()
    assert home.read(NAME).splitlines()[1] == (
        b'{"step": 1, "epoch": 0, "values": {"loss": 0.75, "lr": 0.1, "accuracy": 0.25}}'
    )
    lines.close()


def test_values_that_come_late(home):
    """For a step whose line is there: it is written again with them, and not at all where they are the same."""
    lines = opened(home)
    for step in (1, 2):
        lines.add(step, 0, {"loss": step / 2})
    lines.waits = False
    lines.add(2, 0, {"accuracy": 0.5})
    assert written(home) == [(1, {"loss": 0.5}), (2, {"loss": 1.0, "accuracy": 0.5})]
    inode = home.status(NAME).st_ino
    lines.add(2, 0, {"accuracy": 0.5})
    assert home.status(NAME).st_ino == inode
    lines.add(3, 0, {"loss": 1.5})
    assert written(home)[2] == (3, {"loss": 1.5})
    lines.close()
    lines.close()
    lines.add(4, 0, {"loss": 2.0})  # nobody has it open any more
    assert len(written(home)) == 3


@pytest.mark.parametrize("killed_after", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("saved", [0, 1, 2])
def test_after_an_interruption(home, killed_after, saved):
    """Lines after the checkpoint are cut off and come again: the file is that of a run that was never interrupted."""

    def play(first, last):
        lines = opened(home, first)
        for step in range(first, last + 1):
            if step > first:
                lines.add(step, 0, {"loss": step / 8})
            if step == saved:
                lines.flush()
        return lines

    play(0, max(saved, killed_after))  # and no close: what waits is lost
    lines = play(saved, 4)
    lines.close()
    assert written(home) == [(step, {"loss": step / 8}) for step in (1, 2, 3, 4)]


def test_cutting_off_is_needed(home):
    """Negative control: opened at a later step than that of the checkpoint, a line that is not the run's stays."""
    opened(home, waits=False).add(2, 0, {"loss": 9.0})
    lines = opened(home, 2, waits=False)
    lines.add(1, 0, {"loss": 0.125})
    assert written(home) != [(1, {"loss": 0.125})]
    lines.close()


def test_a_rank_that_takes_over(home):
    """It writes the line that the dead one had not written, and none that it had."""
    leader, other = opened(home), opened(home, writes=False)
    for step in (1, 2, 3):
        for lines in (leader, other):
            lines.add(step, 0, {"loss": step / 2})
            if (lines, step) != (leader, 3):
                lines.flush()
    other.take_over()
    assert written(home) == [(1, {"loss": 0.5}), (2, {"loss": 1.0}), (3, {"loss": 1.5})]
    other.add(4, 0, {"loss": 2.0})
    other.close()
    assert [step for step, _ in written(home)] == [1, 2, 3, 4]


def test_nothing_is_made_without_values(home):
    """No file, for a run that records nothing; nor anything before the run is open."""
    MetricLines().add(1, 0, {"loss": 1.0})
    lines = opened(home)
    lines.flush()
    lines.sync()
    lines.close()
    assert home.names() == []


def test_damage_is_known_when_the_file_is_opened(home):
    """Which line, and that the others stay; not of a whole file."""
    lines = opened(home, waits=False)
    for step in (1, 2, 3):
        lines.add(step, 0, {"loss": step / 2})
    lines.close()
    whole = home.read(NAME)
    assert opened(home, 3).damage == ""
    for content, told in ((whole + b'{"step": 4', "broke off within line 4"), (b"x" + whole, "was damaged in line 1")):
        home.replace(NAME, content)
        found = opened(home, 3)
        assert found.damage == f"{NAME} that {told}; it is left out, the others up to step 3 stay"
        found.close()
        assert [step for step, _ in written(home)] == [1, 2, 3][told.endswith("line 1") :]
