"""What the terminal shows: a curve in text, and everything within its columns."""

import io
import json
import os
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from report.made_runs import make_run
from report.watch.test_state import holder
from unisono.report.sources import sections_of
from unisono.report.watch.screen import curve, draw
from unisono.report.watch.state import WatchedRun
from unisono.report.watch.told import events, held_up, verdict
from unisono.system.processes import boot_id


def shown(runs, width, *more):
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    console.print(draw(runs, width, *more))
    return out.getvalue()


def test_a_curve():
    """The highest value is full, the lowest nearly empty; a falling curve falls; one value is a curve too."""
    assert curve([(step, 2.0**-step) for step in range(8)], 18, 2) == ["        1 █▆▄▂    ", " 0.007812 ████▇▅▃▁"]
    assert len(curve([(1, 0.5)], 80, 3)) == 3
    assert curve([(1, float("nan"))], 80, 3) == []
    spiked = [(step, 100.0 if step == 40 else 1.0) for step in range(80)]
    assert curve(spiked, 18, 1)[0].startswith("     10.9")  # of ten steps one column: its mean


def test_a_noisy_curve():
    """Smooth, with single points pale above it; on a logarithmic scale where it spans more than a decade."""
    noisy = [(step, 20.0 if step < 200 else 1.0 if step % 8 else 2.5) for step in range(400)]
    lines = curve(noisy, 50, 8)
    assert lines[0].startswith("       20 ███")
    assert "░" not in lines[-1] and "░░░" in lines[-2]
    assert float(lines[-1].split()[0]) == pytest.approx(1.19, abs=0.1)  # the mean
    halves = {scale: curve([(1, scale), (2, scale / 3), (3, 1.0)], 13, 8) for scale in (9.0, 27.0)}
    heights = {scale: sum(line[14] != " " for line in lines) for scale, lines in halves.items()}
    assert heights == {9.0: 3, 27.0: 6}  # (3 - 1) / (9 - 1), and log 9 / log 27


@pytest.mark.parametrize("width", [40, 60, 80, 160, 200])
def test_the_screen_has_room(width, tmp_path):
    """No line is longer than the terminal, and what matters is on it."""
    run = WatchedRun(make_run(tmp_path / "run", workers=3, slow=1, steps=90, launches=((1, 40), (31, 90))))
    text = shown([run], width)
    assert max(map(len, text.splitlines())) <= width
    for word in ("run finished", "step 90", "rank 1 is slow", "launch 2", "10 steps computed again", "of disk free"):
        assert word in " ".join(text.replace("│", " ").split()), word


def test_a_narrow_screen_breaks_nothing(tmp_path):
    """At 40 columns lines end between two facts, bars have all their letters, and a score has its last value."""
    run = WatchedRun(make_run(tmp_path / "run", result=False, last_step=460))
    lines = [line.strip("│ ") for line in shown([run], 40).splitlines()]
    assert "step 60 of 460  epoch 1" in lines
    assert "last 1,693 samples/s  1,778 in steps" in lines
    assert "loss, steps 1 to 60, log scale" in lines
    assert "0   37.8 ms  FFFFBBBBBBBRRC" in [line.rstrip() for line in lines]
    assert [line for line in lines if line.startswith("test_accuracy") and line.endswith("█ 0.9833")]
    assert not [line for line in lines if "…" in line]


@pytest.mark.parametrize("height", [5, 8, 10, 12, 14, 18, 22, 30, 60])
@pytest.mark.parametrize("width", [40, 80, 140])
def test_the_screen_is_no_higher_than_the_terminal(width, height, tmp_path):
    """What there are no lines for is left out: curve, ranks and metrics before the last event; the keys are told.

    How it does, how far it is, its values and what holds it up stand first.
    """
    path = make_run(tmp_path / "run", workers=8, result=False, other=90, launches=((1, 40), (31, 60)))
    text = shown([WatchedRun(path)], width, height, "q ends it")
    lines = text.splitlines()
    assert len(lines) <= height
    assert lines[-1].endswith("q ends it ─╯")
    words = " ".join(text.replace("│", " ").split())
    assert "no step for long" in words and ("step 60" in words or (width, height) == (40, 5))
    assert height < 12 or ("loss 0.0333" in words and "of the time is outside of steps" in words)
    assert "launch 2: 8 workers from step" in words or height < (22 if width == 40 else 18)
    assert "metrics: last" in text or height < 30
    assert "metrics: last" not in text or height > 10


def test_several_runs_stand_side_by_side(tmp_path):
    """In a table, with as many columns as there is room for; where there are no lines for more, it stands alone."""
    runs = [WatchedRun(make_run(tmp_path / name, last_step=120)) for name in ("first", "second")]
    head, *rows = [line.split() for line in shown(runs, 100).splitlines()[:3]]
    assert head == ["run", "state", "step", "loss", "samples/s", "left", "test_accuracy"]
    assert rows == [
        [name, "finished", "60", "of", "120", "0.0333", "1,600", "-", "0.9833"] for name in ("first", "second")
    ]
    assert shown(runs, 40).splitlines()[0].split() == ["run", "state", "step", "loss"]
    *_, last = alone = shown(runs, 100, 12, "q ends it").splitlines()
    assert len(alone) == 4
    assert last == "unisono watch RUN shows one alone · q ends it"
    *_, last = few = shown([*runs, WatchedRun(make_run(tmp_path / "third"))], 40, 4).splitlines()
    assert (len(few), last) == (4, "and 1 more run")


def test_what_holds_it_up(tmp_path):
    """Where the time outside of steps goes, and what takes a slow rank longer than the others."""
    run = WatchedRun(make_run(tmp_path / "run", result=False, slow=1, other=90))
    outside, slow = held_up(run)
    assert outside == "72% of the time is outside of steps: the program's own code 70%, checkpoints 1%"
    assert slow == "rank 1 is slow: 10.2 ms per replica, 32% above the other ranks' median, most of it in forward"
    assert outside in shown([run], 100)
    assert list(held_up(WatchedRun(make_run(tmp_path / "usual")))) == []


def test_workers_that_share_cores(tmp_path, monkeypatch):
    """More of them than cores take turns: that is told, and none of them is called slow; with a core each it is."""
    monkeypatch.setattr(WatchedRun, "state", "training")
    for cores, told in ((2, "4 workers share 2 cores: they take turns"), (4, "rank 1 is slow: ")):
        path = make_run(tmp_path / str(cores), workers=4, result=False, slow=1, cores=cores)
        run = WatchedRun(path)
        (line,) = held_up(run)
        assert line.startswith(told) and ("slow" in verdict(run)[0]) is (cores == 4) is (run.slowest() is not None)
        findings = [remark.text for remark in sections_of([path])[1][0].findings]
        assert ["is slow" in text for text in findings].count(True) == (cores == 4)
        assert ("4 workers share 2 cores: they take turns, so no rank is called slow." in findings) is (cores == 2)


def test_events_have_their_time(tmp_path):
    """With the date, where that is more than a day ago; in the order in which they happened."""
    path = make_run(tmp_path / "run", launches=((1, 40), (31, 60)))
    (told,) = events(WatchedRun(path))
    assert re.fullmatch(r"\d\d\d\d-\d\d-\d\d \d\d:\d\d launch 2: 2 workers from step 31, 10 steps computed again", told)
    for file in (path / "phases").iterdir():
        now = time.time_ns()
        file.write_text(re.sub(r'"wall_ns": \d+', f'"wall_ns": {now}', file.read_text()))
    (told,) = events(WatchedRun(path))
    assert re.match(r"\d\d:\d\d:\d\d launch 2: ", told)


@pytest.mark.parametrize("height", [10, 11, 12, 14, 18])
def test_a_death_is_told_before_a_join(height, tmp_path):
    """In a low terminal: a death goes before newer joins, and no line is left empty."""
    path = make_run(tmp_path / "run", workers=2, result=False)
    for rank in range(2, 8):  # each joins later
        head, *lines = (path / "phases" / "rank-1.jsonl").read_text().splitlines()
        head = head.replace('"rank": 1', f'"rank": {rank}')
        (path / "phases" / f"rank-{rank}.jsonl").write_text("\n".join([head, *lines[10 * rank - 15 :], ""]))
    with (path / "phases" / "rank-0.jsonl").open("a") as phases:
        phases.write('{"lost": 1, "step": 5, "wall_ns": 1795000010000000000}\n')
    run = WatchedRun(path)
    assert [line.split("rank ")[1][:6] for line in events(run)] == ["1 died", *(f"{rank} has " for rank in range(2, 8))]
    assert [line[-30:] for line in events(run, 1)] == ["d in step 5, and 6 more events"]
    died, joined = events(run, 2)
    assert died.endswith("died in step 5") and joined.endswith("rank 7 has joined in step 56, and 5 more events")
    assert [*events(run, 7)] == [*events(run)] and [*events(run, 0)] == []
    lines = shown([run], 80, height).splitlines()
    assert "died in step 5" in "".join(lines) and len(lines) == height


def test_the_last_checkpoint(tmp_path):
    """Its step and its age, of a run that may still be killed."""
    path = make_run(tmp_path / "run", result=False)
    assert "checkpoint:" not in shown([WatchedRun(path)], 80)
    place = path / "checkpoints" / "step-00000040.0123abcd"
    place.mkdir(parents=True)
    os.utime(place, (time.time() - 3600, time.time() - 3600))
    assert "checkpoint: step 40, 1 h ago" in shown([WatchedRun(path)], 80)
    facts = WatchedRun(path).facts()
    assert (facts["checkpoint_step"], facts["checkpoint_age_s"]) == (40, pytest.approx(3600, abs=60))


def test_a_wide_screen_has_two_columns(tmp_path):
    """From 114 columns on the loss stands beside metrics and ranks."""
    run = WatchedRun(make_run(tmp_path / "run"))
    assert "loss, steps 1 to 60, log scale" in shown([run], 160)
    for width, is_beside in ((110, False), (114, True)):
        (line,) = [line for line in shown([run], width).splitlines() if "loss, steps" in line]
        assert ("metrics: last" in line) is is_beside


def test_many_ranks_and_runs(tmp_path):
    """Sixteen ranks are listed, the others counted; several runs stand below each other."""
    many, other = WatchedRun(make_run(tmp_path / "many", workers=20)), WatchedRun(make_run(tmp_path / "other"))
    text = shown([many, other], 100)
    assert "4 more" in text
    assert text.index("many finished") < text.index("other finished")


def test_the_first_line_says_how_it_does(tmp_path, monkeypatch):
    """Time left, where the loss goes and who is slow; or what to do, in red."""
    path = make_run(tmp_path / "run", result=False, slow=1, last_step=120)
    monkeypatch.setattr(WatchedRun, "state", "training")
    said, style = verdict(WatchedRun(path))
    assert re.fullmatch(r"on track, loss falling, \d+ s left, rank 1 is slow by 32%", said), said
    assert "red" not in style
    lines = [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]
    (path / "ledger.jsonl").write_text(
        "".join(json.dumps(line | {"loss": float(line["step"]).hex()}) + "\n" for line in lines)
    )
    said, style = verdict(WatchedRun(path))
    assert said == "the loss diverges: loss from 1 to 55.5. Lower the learning rate, or set clip_norm"
    assert "red" in style


def test_the_loss_is_shown_once(tmp_path):
    """In figures once, as a curve once; a `Trainer` logs the loss that the ledger has for every step."""
    path = make_run(tmp_path / "run")
    text = shown([WatchedRun(path)], 80)
    assert (text.count("loss from 0.5858 to 0.03613"), text.count("loss 0."), text.count("loss, steps")) == (1, 0, 1)
    (path / "result.json").unlink()
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 60, "epoch": 1, "values": {"train/loss": 0.4567, "lr": 0.25}}\n')
    text = shown([WatchedRun(path)], 80)
    assert "loss 0.0333  test_accuracy 0.9833  lr 0.2500" in text
    assert "0.4567" not in text


def test_numbers_have_room(tmp_path):
    """A name stays on one line with its value; a small number has its digits; the only learning rate is `lr`."""
    path = make_run(tmp_path / "run")
    values = {"lr/0": 3e-8, **{f"test_score_{number}": 0.5 for number in range(6)}}
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 60, "epoch": 1, "values": values}) + "\n")
    text = shown([WatchedRun(path)], 80)
    assert "lr 3e-08" in text
    assert "lr/0" not in text
    assert all(f"test_score_{number} 0.5000" in text for number in range(6))
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 60, "epoch": 1, "values": {"lr/1": 0.1}}\n')
    text = shown([WatchedRun(path)], 80)
    assert "lr/0 3e-08" in text
    assert "lr/1 0.1000" in text


def test_scores_have_curves(tmp_path):
    """What was measured several times rises from left to right, with its ends in numbers; a learning rate has none."""
    path = make_run(tmp_path / "run")
    with (path / "metrics.jsonl").open("a") as file:
        file.writelines(
            json.dumps({"step": step, "epoch": 1, "values": {"lr/0": 0.1 / step}}) + "\n" for step in (61, 62)
        )
    text = shown([WatchedRun(path)], 80)
    assert "test_accuracy ▁▁▁▁▁▁▅▅▅▅▅▅▇▇▇▇▇▇▇▇▇▇▇▇████████████ 0.9833 (0.9000 to 0.9833)" in text
    assert "lr ▁" not in text


def test_the_legend_names_the_letters(tmp_path):
    """Without colours the letters of a bar are told; phases that take no time are left out."""
    text = shown([WatchedRun(make_run(tmp_path / "run"))], 80)
    assert "D data  F forward  B backward  R reduce  U update  C checkpoint" in text
    assert "E evaluate" not in text


def test_what_a_finished_run_says(tmp_path):
    """How long it took, its fingerprint, and what to do next; a run that trains says none of it."""
    text = " ".join(shown([WatchedRun(make_run(tmp_path / "run"))], 200).split())
    assert "took 4.2 s (last launch)" in text
    assert f"fingerprint {'0' * 16}..." in text
    assert f"next: unisono report {tmp_path / 'run'}" in text
    assert "next:" not in shown([WatchedRun(make_run(tmp_path / "other", result=False))], 200)


def test_what_a_stopped_run_says(tmp_path):
    """After which step, that it is saved, and the command that goes on, as it was typed."""
    path = make_run(tmp_path / "run", last_step=120)
    result = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(result | {"finished": False}))
    told = {"command": f"unisono run -n 3 train.py --out {path}", "directory": str(Path.cwd())}
    (path / "command.json").write_text(json.dumps(told))
    text = " ".join(shown([WatchedRun(path)], 200).split())
    assert "run stopped" in text
    assert "saved after step 60 of 120, the same command goes on; loss from 0.5858 to 0.03613" in text
    text = text.replace(" │ │ ", " ")
    assert f"next: {told['command']} took" in text and f"its curves: unisono report {path} " in text


def test_a_run_whose_program_goes_on(tmp_path):
    """Its last step is done: it is ending, and finished once it has its result, whatever its process does then."""
    path = make_run(tmp_path / "run", last_step=60)
    (path / "run.lock").write_text(holder(os.getpid()))
    assert (WatchedRun(path).state, verdict(WatchedRun(path))[0]) == ("finished", "loss from 0.5858 to 0.03613")
    (path / "result.json").unlink()
    assert verdict(WatchedRun(path)) == (
        "all 60 steps are done, it is ending", "bold cyan"
    )  # fmt: skip
    more = make_run(tmp_path / "more", last_step=120)  # the result is that of the launch before
    (more / "run.lock").write_text(holder(os.getpid()))
    assert WatchedRun(more).state == "training"


def test_what_a_killed_run_says(tmp_path):
    """That it is not finished, and how it goes on; a finished one does not."""
    path = make_run(tmp_path / "run", result=False)
    (path / "run.lock").write_text(json.dumps({"host": "", "boot_id": boot_id(), "pid": 2**22 + 1, "start_ticks": 1}))
    for each, is_told in ((path, True), (make_run(tmp_path / "other"), False)):
        text = " ".join(shown([WatchedRun(each)], 80).replace("│", "").split())
        assert ("it ended, not finished: killed, or its error is in the output of its command" in text) is is_told
    (path / "checkpoints" / "step-00000040.0123abcd").mkdir(parents=True)
    (path / "run.toml").touch()
    text = shown([WatchedRun(path)], 200)
    assert "The same command goes on after step 40" in " ".join(text.replace("│", "").split())
    assert f"next: unisono train --config {path} --out {path} " in text


def test_hostile_names(tmp_path):
    """A run's name and its metrics' names are text: no markup, no escape sequence, nothing turned round."""
    path = make_run(tmp_path / "[red]x\x1b[2J\u202e")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 60, "epoch": 0, "values": {"[blink]\\u001b[2J": 1.0}}\n')
    text = shown([WatchedRun(path)], 100)
    assert "[red]x" in text
    assert "[blink]" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
