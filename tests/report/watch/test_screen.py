"""What the terminal shows: a curve in text, and everything within its columns."""

import io

import pytest
from rich.console import Console

from report.made_runs import make_run
from unisono.report.watch.screen import curve, draw, headline
from unisono.report.watch.state import WatchedRun


def shown(runs, width):
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    console.print(draw(runs, width))
    return out.getvalue()


def test_a_curve():
    """The highest value is full, the lowest nearly empty; a falling curve falls; one value is a curve too."""
    assert curve([(step, 2.0**-step) for step in range(8)], 18, 2) == ["        1 █▆▄▂    ", " 0.007812 ████▇▅▃▁"]
    assert len(curve([(1, 0.5)], 80, 3)) == 3
    assert curve([(1, float("nan"))], 80, 3) == []


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_screen_has_room(width, tmp_path):
    """No line is longer than the terminal, and what matters is on it."""
    run = WatchedRun(make_run(tmp_path / "run", workers=3, slow=1, launches=((1, 40), (31, 60))))
    text = shown([run], width)
    assert max(map(len, text.splitlines())) <= width
    for word in ("run finished", "step 60", "slow", "launch 2", "10 steps computed again", "free on the disk"):
        assert word in " ".join(text.replace("│", " ").split()), word


def test_many_ranks_and_runs(tmp_path):
    """Sixteen ranks are listed, the others counted; several runs stand below each other."""
    many, other = WatchedRun(make_run(tmp_path / "many", workers=20)), WatchedRun(make_run(tmp_path / "other"))
    text = shown([many, other], 100)
    assert "4 more" in text
    assert text.index("many finished") < text.index("other finished")


def test_the_headline(tmp_path):
    """One line for the page."""
    run = WatchedRun(make_run(tmp_path / "run"))
    assert headline(run) == "run finished: step 60, epoch 1, 644 samples/s · loss 0.0333  test_accuracy 0.9833"


def test_the_loss_is_shown_once(tmp_path):
    """A `Trainer` logs the loss that the ledger has for every step."""
    path = make_run(tmp_path / "run")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 60, "epoch": 1, "values": {"train/loss": 0.4567, "lr": 0.25}}\n')
    text = shown([WatchedRun(path)], 80)
    assert "loss 0.0333  test_accuracy 0.9833  lr 0.2500" in text
    assert "0.4567" not in text


def test_hostile_names(tmp_path):
    """A run's name and its metrics' names are text: no markup, no escape sequence, nothing turned round."""
    path = make_run(tmp_path / "[red]x\x1b[2J\u202e")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 60, "epoch": 0, "values": {"[blink]\\u001b[2J": 1.0}}\n')
    text = shown([WatchedRun(path)], 100) + headline(WatchedRun(path))
    assert "[red]x" in text
    assert "[blink]" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
