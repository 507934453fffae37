"""Where a ledger is damaged is said in one line, with what it means and what to do."""

import json

import pytest

from unisono.observe.damage import damaged_from, describe_damage, describe_metric_damage


def write(path, *lines):
    path.write_bytes(b"".join(lines))
    return path


WHOLE = [
    json.dumps({"step": step, "epoch": 0, "num_samples": 4, "loss": "0x1p+0", "values": {}}).encode() + b"\n"
    for step in range(1, 6)
]


@pytest.mark.parametrize("torn", [b'{"step": 6, "ep', b"\0" * 50, b"\xff\xfe\n"])
def test_a_cut_last_line(tmp_path, torn):
    """After the newest checkpoint it is written again; a step that a checkpoint has been saved after has lost it."""
    path = write(tmp_path / "ledger.jsonl", *WHOLE, torn)
    assert f"{path} breaks off within line 6, as after a power cut: step 6 is missing." in describe_damage(path, 4)
    assert "goes on after the checkpoint of step 4, and writes it again" in describe_damage(path, 4)
    assert "goes on from the beginning" in describe_damage(path, 0)
    assert f"line 6 of {path} is damaged: what it said of step 6 is lost. " in describe_damage(path, 6)


def test_lines_that_are_lost(tmp_path):
    """A damaged line, a step without one, a ledger that ends before the newest checkpoint; each with the way out."""
    path = write(tmp_path / "ledger.jsonl", *WHOLE[:2], b"rubbish\n", *WHOLE[3:])
    assert f"line 3 of {path} is damaged: what it said of step 3 is lost. " in describe_damage(path, 5)
    for wrong in (b'{"step": 3, "epoch": 0, "num_samples": 4}\n', WHOLE[2].replace(b"0x1p+0", b"one")):
        write(path, *WHOLE[:2], wrong, *WHOLE[3:])
        assert f"line 3 of {path} is damaged" in describe_damage(path, 5) and damaged_from(path) == 3
    write(path, *WHOLE[:2], *WHOLE[3:])
    assert describe_damage(path, 5).startswith(f"{path} has no line of step 3. ")
    assert "Hint: put back a copy of the file" in describe_damage(path, 5)
    write(path, *WHOLE)
    assert describe_damage(path, 7).startswith(f"{path} has no line of step 6. ")
    assert describe_damage(path, 5) is None
    assert describe_damage(tmp_path / "none.jsonl", 0) is None


def test_a_line_that_was_damaged_before_a_resume(tmp_path):
    """The first resume that found it so is named, with the copy that it has kept."""
    path = write(tmp_path / "ledger.jsonl", *WHOLE[:2], *WHOLE[3:])
    for name in ("ledger.damaged-1-at-2.jsonl", "ledger.damaged-2-at-12.jsonl", "ledger.damaged-3-at-4.jsonl"):
        (tmp_path / name).write_bytes(b"")
    found = f"has no line of step 3, which was damaged before the resume after step 4: see {tmp_path}/ledger.damaged-3-"
    assert found in describe_damage(path, 5)


def test_damaged_metrics(tmp_path):
    """Half a last line and rubbish in the middle are told in one line; steps without a line are no damage."""
    path = write(tmp_path / "metrics.jsonl", *WHOLE[:2], *WHOLE[3:])
    assert describe_metric_damage(path) is describe_metric_damage(tmp_path / "none.jsonl") is None
    write(path, *WHOLE, b'{"step": 6, "va')
    assert describe_metric_damage(path).startswith(f"{path} breaks off within line 6: what was recorded there is lost")
    for wrong in (b"rubbish\n", b'{"step": 3}\n', b'{"step": 3, "values": {"a": "b"}}\n'):
        write(path, *WHOLE[:2], wrong, *WHOLE[3:])
        assert describe_metric_damage(path).startswith(f"{path} is damaged in line 3: what was recorded there is lost")
