"""The ledger is the exact record of a run: exact to the bit, and cut on resume."""

import json
import math
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from unisono.errors import CheckpointError
from unisono.observe.chain import START, head, parse_all
from unisono.observe.damage import changed_line
from unisono.observe.ledger import Entry, Ledger, Logged, Unwritten, hash_samples, read_lines
from unisono.system.directory import Directory


def entry(step: int) -> Entry:
    return Entry(
        step=step,
        epoch=(step - 1) // 4,
        num_samples=8,
        samples=hash_samples(np.arange(step)),
        loss=math.sqrt(step).hex(),
        gradient=f"{step:016x}",
        weights=f"{step * 3:016x}",
        lr=(0.1).hex(),
        samples_weight=(2.5).hex() if step == 3 else "",
        evaluations=7 if step == 2 else 0,
    )


def fill(path, steps, last_step=0):
    ledger = Ledger(path, last_step)
    for step in steps:
        ledger.append(partial(entry, step))
    ledger.close()
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("torn", [b"", b'{"step": 8, "ep'])
@pytest.mark.parametrize("written", [3, 7, 9])
def test_another_process_goes_on_with_a_ledger(tmp_path, monkeypatch, written, torn):
    """Whatever the one that has died had written, the file is the one of a writer that has lived."""
    monkeypatch.setattr("unisono.observe.ledger._LOOK_S", 0.0)
    expected = fill(tmp_path / "whole.jsonl", range(1, 10)).read_bytes()
    path = fill(tmp_path / "ledger.jsonl", range(1, 4))
    with Directory.open(tmp_path) as home:
        kept = Unwritten(path, 3, home)
        for step in range(4, 10):
            kept.append(partial(entry, step))
        fill(path, range(4, written + 1), last_step=3)
        with path.open("ab") as file:
            file.write(torn)
        ledger = kept.take_over()
        ledger.close()
    assert path.read_bytes() == expected
    assert ledger.head == head(parse_all(expected))


def test_entries_that_the_file_shows_are_not_kept(tmp_path, monkeypatch):
    """However long a run is, only what may not have been written is held; a line that is being written counts not."""
    monkeypatch.setattr("unisono.observe.ledger._LOOK_S", 0.0)
    path = tmp_path / "ledger.jsonl"
    with Directory.open(tmp_path) as home, closing(Ledger(path, 0)) as ledger:
        kept = Unwritten(path, 0, home)
        for step in range(1, 40):
            ledger.append_now(entry(step))
            kept.append(partial(entry, step))
            assert len(kept._kept) == 0
        kept.append(partial(entry, 40))
        assert [make().step for make in kept._kept] == [40]


def test_entries_come_back_exactly(tmp_path):
    """Each line is one step, its fields in fixed order, its floats exact; a weight, or a count, where there is one."""
    path = fill(tmp_path / "ledger.jsonl", range(1, 4))
    assert [Entry(**line) for line in read_lines(path)] == [entry(1), entry(2), entry(3)]
    usual = Entry._fields[:8]
    found = [[name for name in line if name not in usual] for line in lines(path)]
    assert found == [["previous"], ["evaluations", "previous"], ["samples_weight", "previous"]]
    carried = [line["previous"] for line in lines(path)]
    told = [{name: each for name, each in entry(step)._asdict().items() if each or name in usual} for step in (1, 2, 3)]
    written = [json.dumps(line | {"previous": value}) + "\n" for line, value in zip(told, carried, strict=True)]
    assert path.read_text() == "".join(written)
    assert float.fromhex(lines(path)[1]["loss"]) == math.sqrt(2)


def test_updates_are_part_of_their_line(tmp_path):
    """Of several optimizers each update is told, in order, within the step's line, which is chained as ever."""
    updates = [{"name": "D", "loss": (0.5).hex()}, {"name": "G", "loss": (0.25).hex()}]
    ledger = Ledger(tmp_path / "ledger.jsonl", 0)
    for step in (1, 2):
        ledger.append(lambda step=step: entry(step)._replace(updates=updates))
    ledger.close()
    assert ["updates" in line for line in lines(tmp_path / "ledger.jsonl")] == [True, True]
    assert [Entry(**line) for line in read_lines(tmp_path / "ledger.jsonl")] == [
        entry(step)._replace(updates=updates) for step in (1, 2)
    ]
    assert changed_line(tmp_path / "ledger.jsonl", {2: ledger.head}) is None


def test_equal_runs_have_equal_files(tmp_path):
    """No time and no place is in a ledger: the same steps give the same bytes."""
    left, right = fill(tmp_path / "a.jsonl", range(1, 6)), fill(tmp_path / "b.jsonl", range(1, 6))
    assert left.read_bytes() == right.read_bytes()


def test_lines_reach_the_file(tmp_path, monkeypatch):
    """Lines of slow steps are there before the process does anything else; fast ones wait for the next, or a flush."""
    now = [0.0]
    monkeypatch.setattr("unisono.observe.ledger.time.monotonic", lambda: now[0])
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, 0)

    def after(step, seconds):
        now[0] += seconds
        ledger.append(partial(entry, step))
        return [line["step"] for line in lines(path)]

    assert after(1, 1.0) == [1]
    assert after(2, 0.005) == after(3, 0.005) == [1]
    assert after(4, 0.025) == [1, 2, 3, 4]
    after(5, 0.01)
    ledger.flush()
    assert [line["step"] for line in lines(path)] == [1, 2, 3, 4, 5]
    after(6, 0.01)
    ledger.sync()
    ledger.close()
    ledger.close()
    assert [line["step"] for line in lines(path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("done", [0, 3, 5])
def test_resume_cuts_what_will_be_written_again(tmp_path, done):
    """Lines after the checkpoint's step go; going on gives the file of a run that was never interrupted."""
    path = fill(tmp_path / "ledger.jsonl", range(1, 6))
    whole = fill(tmp_path / "whole.jsonl", range(1, 8))
    fill(path, range(done + 1, 8), last_step=done)
    assert path.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("cut", [1, 2, 40, 100])
def test_a_torn_last_line_is_cut_off(tmp_path, cut):
    """A line that a crash left incomplete is dropped, not continued and not fatal."""
    path = fill(tmp_path / "ledger.jsonl", range(1, 4))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    fill(path, [3], last_step=2)
    assert path.read_bytes() == whole


def test_bytes_that_no_run_writes_end_the_ledger(tmp_path):
    """Zeros or garbage after a power cut count as a torn line."""
    path = fill(tmp_path / "ledger.jsonl", [1, 2])
    whole = path.read_bytes()
    for garbage in (b"\0" * 50, b"\xff\xfe\x80", b'{"step": 3, "ep'):
        path.write_bytes(whole + garbage)
        fill(path, [], last_step=2)
        assert path.read_bytes() == whole


def damage(whole):
    first, second, third, *_ = whole.splitlines(keepends=True)
    return {
        "missing": None,
        "empty": b"",
        "first line gone": second + third,
        "middle line gone": first + third,
        "zeros in the middle": first + bytes(len(second)) + third,
        "a list": first + b"[1,2]\n" + third,
        "no step": first + b'{"epoch": 2}\n' + third,
        "deep": first + b"[" * 100_000 + b"\n" + third,
        "swapped": second + first + third,
        "twice": first + second + second + third,
        "cut short": first + second,
    }


@pytest.mark.parametrize("kind", damage(b"1\n2\n3\n"))
def test_a_damaged_ledger_is_never_cut_without_a_word(tmp_path, kind):
    """Where a line up to the checkpoint's step is missing, what is left is kept, the loss said, the file set aside."""
    path = fill(tmp_path / "ledger.jsonl", range(1, 6))
    whole = path.read_bytes()
    found = damage(whole)[kind]
    path.unlink() if found is None else path.write_bytes(found)
    with pytest.warns(UserWarning, match=r"ledger .* is damaged: .*goes on from its checkpoint"):
        fill(path, [4, 5], last_step=3)
    kept = {line["step"] for line in lines(path)}
    readable = {n for n in (1, 2, 3) if whole.splitlines()[n - 1] in (found or b"").splitlines()}
    assert kept == readable | {4, 5}
    copies = [copy.read_bytes() for copy in tmp_path.glob("ledger.damaged-*.jsonl")]
    has_more = kind in ("zeros in the middle", "a list", "no step", "deep", "swapped", "twice")
    assert copies == ([found] if has_more else [])
    if kept != {1, 2, 3, 4, 5}:  # said again at the next launch, but not copied again
        with pytest.warns(UserWarning, match="is damaged"):
            fill(path, [], last_step=5)
        assert len(list(tmp_path.glob("ledger.damaged-*"))) == has_more


def test_a_changed_line_is_refused(tmp_path):
    """A digit that somebody has changed in a past line stops the resume, with the line's number and the way out."""
    path = fill(tmp_path / "ledger.jsonl", range(1, 6))
    whole = path.read_bytes()
    saved = head_of(path, 4)
    for step in (2, 4):
        text = whole.replace(f"{step:016x}".encode(), f"{step + 9:016x}".encode())
        path.write_bytes(text)
        with pytest.raises(CheckpointError, match=rf"has been changed: line {step} .*Hint: put back a copy"):
            Ledger(path, 4, head=saved)
        assert path.read_bytes() == text  # nothing is mended behind anybody's back
    path.write_bytes(whole.replace(f"{5:016x}".encode(), f"{9:016x}".encode()))
    Ledger(path, 4, head=saved).close()  # the control: what is cut off may be anything
    path.write_bytes(whole)
    Ledger(path, 4, head=saved).close()


def test_the_chain_goes_on_where_a_ledger_was_moved_away(tmp_path):
    """The way out: without the file, the run goes on from its checkpoint, and the later lines are those of any run."""
    path = fill(tmp_path / "ledger.jsonl", range(1, 8))
    whole, saved = path.read_bytes().splitlines(), head_of(path, 4)
    path.unlink()
    with pytest.warns(UserWarning, match="4 of the steps 1-4 are missing"):
        ledger = Ledger(path, 4, head=saved)
    for step in (5, 6, 7):
        ledger.append(partial(entry, step))
    ledger.close()
    assert path.read_bytes().splitlines() == whole[4:]
    assert changed_line(path, {7: head_of(path, 7)}) is None


def test_the_head_is_that_of_all_lines_written(tmp_path):
    """Equal steps give equal heads, however they were written; other ledgers (`has_gaps`) carry no chain."""
    path = fill(tmp_path / "a.jsonl", range(1, 6))
    ledger = Ledger(tmp_path / "b.jsonl", 0)
    assert ledger.head == START
    for step in range(1, 6):
        ledger.append_now(entry(step))
    ledger.close()
    assert ledger.head == head_of(path, 5) == head(parse_all(path.read_bytes()))
    logged = Ledger(tmp_path / "metrics.jsonl", 0, has_gaps=True)
    logged.append_now(Logged(step=3, epoch=0, values={"loss": 1.0}))
    logged.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 3, "epoch": 0, "values": {"loss": 1.0}}\n'


def head_of(path, step):
    return head(parse_all(b"\n".join(path.read_bytes().splitlines()[:step])))


def test_lines_that_are_no_entries_end_what_is_compared(tmp_path):
    """A list or a number among the lines is not an entry; reading stops there and does not fail."""
    path = fill(tmp_path / "ledger.jsonl", [1, 2])
    for strange in (b"[1,2]\n", b"7\n", b'{"step": true}\n', b'{"step": "3"}\n'):
        whole = path.read_bytes()
        path.write_bytes(whole + strange)
        assert [line["step"] for line in read_lines(path)] == [1, 2]
        path.write_bytes(whole)


def test_samples_hash_sees_members_and_order():
    """The hash depends on which samples and in which order, not on the integer type they are held in."""
    batch = np.array([3, 1, 2])
    assert hash_samples(batch) == hash_samples(batch.astype(np.int32)) == hash_samples(batch[::-1][::-1])
    assert len({hash_samples(np.array(other)) for other in ([3, 1, 2], [1, 3, 2], [3, 1], [3, 1, 2, 0])}) == 4
