"""Progress is a bar on a terminal, plain lines in a pipe, and silence on all ranks but the leader."""

import re
import sys

import pytest

from terminal import run_on_terminal
from unisono.observe.progress import ProgressLine, WorkLine, pace
from unisono.observe.speed import Speed


@pytest.fixture(autouse=True)
def _no_forced_terminal(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def epochs_of(per_epoch, total):
    return lambda step: f"epoch {(step - 1) // per_epoch + 1}/{-(-total // per_epoch)}"


def test_plain_lines_in_a_pipe(capsys):
    """Piped, progress is whole lines on standard error without control characters; the last step is always told."""
    with ProgressLine(20, epochs_of(10, 20), speed=lambda: Speed(2390.4, 2600.0)) as progress:
        for step in range(1, 21):
            progress.step(step, 1 / step)
        progress.note("epoch 2/2  test_accuracy 0.9000")
    out, err = capsys.readouterr()
    assert out == ""
    assert "\x1b" not in err
    assert "\r" not in err
    told, noted = err.splitlines()
    assert told == "epoch 2/2  step 20/20  loss 0.0500  now 2,390 samples/s (2,600 in steps)"
    assert noted == "epoch 2/2  test_accuracy 0.9000"


def test_plain_lines_are_rare_but_come(capsys, monkeypatch):
    """Between first and last step a line comes every few seconds, not every step."""
    seconds = iter(range(1000))
    monkeypatch.setattr("unisono.observe.progress.time.monotonic", lambda: float(next(seconds)))
    with ProgressLine(40, epochs_of(10, 40)) as progress:
        for step in range(1, 41):
            progress.step(step, 1.0)
    assert 4 <= len(capsys.readouterr().err.splitlines()) <= 9


def test_plain_lines_tell_how_long_it_will_take(capsys, monkeypatch):
    """Six seconds a step, 34 of 40 steps (resumed after 30) are done, six are left; a share of data is asked for."""
    now = [0.0]
    monkeypatch.setattr("unisono.observe.progress.time.monotonic", lambda: now[0])
    told = ProgressLine(40, epochs_of(10, 40), first_step=30, speed=lambda: Speed(10.0, 40.0), data_share=lambda: 0.25)
    with told as progress:
        for step in range(31, 35):
            now[0] += 6
            progress.step(step, 0.5)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "epoch 4/4  step 34/40  loss 0.5000  now 10 samples/s (40 in steps)  75% of the time is outside of steps"
        "  data wait 25%  36 s left"
    )


def test_long_lines_are_not_broken(capsys):
    """A long note stays one line, so that programs can read it."""
    with ProgressLine(1, epochs_of(1, 1)) as progress:
        progress.note("x" * 300)
    assert capsys.readouterr().err == "x" * 300 + "\n"


@pytest.mark.parametrize(
    "text", ["[bold] is not markup", "metric[0] 1.5", "[/] closes nothing", ":warning: is no sign"]
)
def test_notes_are_printed_as_they_are(capsys, text):
    """Square brackets of a metric's name are text, not markup."""
    with ProgressLine(1, epochs_of(1, 1)) as progress:
        progress.note(text)
    assert capsys.readouterr().err == text + "\n"


def test_the_bar_of_a_resumed_run_begins_in_its_epoch(monkeypatch):
    """Before its first step it shows the epoch of that step, not the first one."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    for first_step, epoch in ((0, "epoch 1/4"), (25, "epoch 3/4"), (40, "epoch 4/4")):
        with ProgressLine(40, epochs_of(10, 40), first_step=first_step) as progress:
            assert progress._bar is not None
            assert progress._bar.tasks[0].description == epoch


def test_other_ranks_are_silent(capsys):
    """Only the leader speaks."""
    with ProgressLine(2, epochs_of(1, 2), is_shown=False) as progress:
        progress.step(1, 1.0)
        progress.step(2, 1.0)
        progress.note("nothing")
    assert capsys.readouterr() == ("", "")


def test_after_close_nothing_is_shown(capsys):
    """Closing twice is harmless, and a closed progress is silent."""
    progress = ProgressLine(2, epochs_of(1, 2))
    progress.close()
    progress.close()
    progress.note("late")
    assert capsys.readouterr().err == ""


def test_short_work_shows_nothing(capsys):
    """What is done at once is not worth a line."""
    with WorkLine() as work:
        for done in range(11):
            work("evaluation", done, 10)
    assert capsys.readouterr() == ("", "")


def test_long_work_in_a_pipe(capsys, monkeypatch):
    """A line every few seconds with what is left, the pieces apart; where nobody knows the whole, only what is done."""
    now = [0.0]
    monkeypatch.setattr("unisono.observe.progress.time.monotonic", lambda: now[0])
    with WorkLine() as work:
        for done in range(5):
            work("reading reviews", 1000 * done, 0)
            now[0] += 3
        for done in range(5):
            work("evaluation", done, 4)
            now[0] += 3
    assert capsys.readouterr().err.splitlines() == [
        "reading reviews  2,000",
        "reading reviews  4,000",
        "evaluation  2/4  6 s left",
    ]


def test_work_of_other_ranks_is_silent(capsys, monkeypatch):
    """Only the leader speaks, and nobody after the end."""
    now = [0.0]
    monkeypatch.setattr("unisono.observe.progress.time.monotonic", lambda: now[0])
    silent, closed = WorkLine(is_shown=False), WorkLine()
    closed.close()
    for _ in range(3):
        now[0] += 10
        silent("evaluation", 1, 4)
        closed("evaluation", 1, 4)
    assert capsys.readouterr() == ("", "")


SCRIPT = """
import sys
from unisono.observe.progress import ProgressLine, WorkLine
from unisono.observe.speed import Speed
total, per_epoch, loss, speed = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
last = int(sys.argv[5]) if len(sys.argv) > 5 else total
words = lambda step: f"epoch {(step - 1) // per_epoch + 1}/{-(-total // per_epoch)}"
asked = {"speed": lambda: Speed(speed, 2 * speed), "data_share": lambda: 0.123}
with ProgressLine(total, words, first_step=total - 40, **asked) as progress:
    for step in range(total - 39, last + 1):
        progress.step(step, loss)
        if step == total - 20:
            import unisono.observe.progress as observed
            observed._SHORT_S = observed._DRAWN_EVERY_S = 0.0
            for done in range(5):
                progress.work("evaluation", done, 4)
                if progress._bar:
                    progress._bar.refresh()
        if step % 10 == 0:
            progress.note(f"epoch 1/5  test_loss 0.1234  step {step}")
        if progress._bar:
            progress._bar.refresh()
"""


def on_terminal(columns: int, *arguments: str, **more: str) -> str:
    return run_on_terminal([sys.executable, "-c", SCRIPT, *arguments], columns, **more)


def visible_lines(screen: str) -> list[str]:
    bare = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    return [line for line in re.split(r"[\r\n]+", bare) if line.strip()]


@pytest.mark.parametrize(
    ("arguments", "has_all"),
    [(("4690", "469", "0.1234", "128"), True), (("10000000", "1000", "123456.789", "65536"), False)],
    ids=["usual", "huge"],
)
def test_the_bar_fits_a_terminal_of_80_columns(arguments, has_all):
    """No line is wider than the terminal; in a usual run epoch, steps, loss and speed are all readable."""
    lines = visible_lines(on_terminal(80, *arguments))
    assert max(map(len, lines)) <= 80
    bars = [line for line in lines if "samples/s" in line]
    assert bars or not has_all
    if has_all:
        assert all("loss" in line and "epoch" in line and "/4690" in line for line in bars)
        assert "0.1234" in bars[-1]
        assert "now 128 samples/s" in bars[-1]
        assert "4690/4690" in bars[-1]


def test_a_wide_terminal_has_a_reason():
    """At 100 columns there is room for one reason why it is slow: what most of the time goes to, or the wait."""
    told = "now 128 samples/s  50% of the time is outside of steps"
    assert told in visible_lines(on_terminal(100, "4690", "469", "0.1234", "128"))[-1]
    assert pace(Speed(128.0, 130.0), 0.12, 100) == "  now 128 samples/s  data wait 12%"
    assert pace(Speed(128.0, 256.0), 0.12, 99) == "  now 128 samples/s"


def test_a_very_wide_terminal_has_both_speeds():
    """At 140 columns there is room for the speed within steps, and for where the time goes."""
    told = "now 128 samples/s (256 in steps)  50% of the time is outside of steps  data wait 12%"
    assert told in visible_lines(on_terminal(140, "4690", "469", "0.1234", "128"))[-1]


def test_the_bar_is_drawn_in_place():
    """On a terminal the bar is redrawn on its own line and the cursor comes back at the end; notes stay above it."""
    screen = on_terminal(100, "200", "100", "0.5", "32")
    assert "\x1b[2K" in screen
    assert screen.count("\x1b[?25l") == screen.count("\x1b[?25h") == 1
    assert len([line for line in visible_lines(screen) if line.startswith("epoch 1/5  test_loss")]) == 4
    assert [line for line in visible_lines(screen) if line.startswith("evaluation") and "1/4" in line]
    assert not visible_lines(screen)[-1].startswith("evaluation")  # gone when it is done


def test_colours_only_where_they_are_wanted():
    """``NO_COLOR`` takes the colours away and leaves the bar; a terminal that can do nothing gets plain lines."""
    coloured = r"\x1b\[[0-9;]*3[0-9]"
    arguments = ("200", "100", "0.5", "32")
    assert re.search(coloured, on_terminal(100, *arguments))
    plain = on_terminal(100, *arguments, NO_COLOR="1")
    assert not re.search(coloured, plain) and "200/200" in plain


@pytest.mark.parametrize("term", ["xterm", "xterm-256color"])
def test_a_finished_bar_has_another_colour_than_an_empty_one(term):
    """With eight colours too, where fine ones become each other's."""
    screen = on_terminal(80, "200", "100", "0.5", "32", TERM=term)
    colours = {*re.findall(r"\x1b\[([0-9;]+)m━", screen)}
    assert colours == {"90", "36", "32"}  # empty, done, finished
    assert "\x1b[32m━" in screen.splitlines()[-2]


def test_a_run_that_stops_before_its_end():
    """The bar ends at the last step that was done, says so, and has no time left; however rarely it was drawn."""
    for last in (170, 181):
        (bar,) = visible_lines(on_terminal(80, "200", "100", "0.5", "32", str(last)))[-1:]
        assert re.fullmatch(rf"epoch 2/2 ━+[╸╺]?[━ ]* {last}/200 stopped, loss 0.5000 *", bar), bar
    (bar,) = visible_lines(on_terminal(80, "200", "100", "0.5", "32", "160"))[-1:]
    assert re.search(r" 160/200 stopped *$", bar), bar


def test_a_narrow_terminal_has_the_numbers():
    """At 40 columns the bar and the speed give way to epoch, step and loss."""
    assert visible_lines(on_terminal(40, "460", "23", "0.0118", "2390"))[-1].split() == [
        "epoch", "20/20", "460/460", "loss", "0.0118",
    ]  # fmt: skip


def test_a_narrow_terminal_breaks_no_word():
    """Notes go on in the next line between two entries."""
    lines = visible_lines(on_terminal(30, "460", "23", "0.0118", "2390"))
    assert "epoch 1/5  test_loss 0.1234" in lines and "step 430" in lines


def test_a_wide_terminal_has_the_time_that_has_passed():
    """From 100 columns on, beside what is left."""
    for columns, has_passed in ((99, False), (100, True)):
        lines = visible_lines(on_terminal(columns, "200", "100", "0.5", "32"))
        assert any(re.search(r"\d s done", line) for line in lines) is has_passed


def test_a_terminal_that_cannot_draw_gets_lines():
    """Where lines cannot be drawn again in place, they are those of a pipe."""
    lines = visible_lines(on_terminal(80, "200", "100", "0.5", "32", TERM="dumb"))
    pace = "now 32 samples/s (64 in steps)  50% of the time is outside of steps  data wait 12%"
    assert f"epoch 2/2  step 200/200  loss 0.5000  {pace}" in lines


def test_a_short_wait_for_data_is_not_told():
    """It is worth a word from a twentieth of the time on."""
    assert pace(Speed(1234.5, 1300.0), 0.04) == "  now 1,234 samples/s (1,300 in steps)"
    assert pace(None, 0.5) == "  data wait 50%"
