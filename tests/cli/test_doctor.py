"""``unisono doctor``: what it prints, and its exit codes."""

import json

import pytest
from click.testing import CliRunner

from unisono.cli.main import unisono
from unisono.doctor.finding import Finding

WRONG = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"


def doctor(*arguments):
    result = CliRunner().invoke(unisono, ["doctor", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_script_with_a_mistake(tmp_path):
    """Code 1; file, line, rule and what to do are printed, the same in JSON."""
    path = tmp_path / "train.py"
    path.write_text(WRONG)
    code, text = doctor(path)
    assert code == 1
    assert text.startswith(f"fail  {path}:3: [collective-on-some-ranks] dist.barrier")
    assert "-> call it on all ranks" in text
    code, text = doctor("--json", path)
    (finding,) = json.loads(text)["findings"]
    assert (code, finding["line"], finding["status"], json.loads(text)["ok"]) == (1, 3, "fail", False)


def test_a_script_without_one_and_one_with_warnings(tmp_path):
    """Code 0 for both."""
    path = tmp_path / "train.py"
    path.write_text("print(1)\n")
    assert doctor(path) == (0, f"{path}: no known mistake\n")
    path.write_text("import random\nrandom.shuffle([1])\n")
    code, text = doctor(path)
    assert (code, text[:4]) == (0, "warn")


def test_wrong_usage(tmp_path):
    """Code 2: no such script, no text, a script and a directory at once, an unknown option."""
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe\x00")
    assert doctor(tmp_path / "none.py")[0] == 2
    assert doctor(tmp_path / "bytes.py")[0] == 2
    assert doctor(tmp_path)[0] == 2
    assert doctor("--dir", tmp_path, tmp_path / "none.py")[0] == 2
    assert doctor("--jsn")[0] == 2


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_the_machine(tmp_path, monkeypatch, status, code):
    """All parts are printed, with the directory asked for; one failure is code 1."""
    last = Finding(name="communication", status=status, detail="as told", hint="do this")
    monkeypatch.setattr("unisono.doctor.self_test.check_talk", lambda *_: [last])
    monkeypatch.setattr("unisono.doctor.machine.check_machine", lambda _: [])
    exit_code, text = doctor("--dir", tmp_path)
    assert exit_code == code
    assert [line.split()[1] for line in text.splitlines() if "->" not in line] == ["directory", "communication"]
    assert text.endswith(f"{status:<5} communication  as told\n      -> do this\n")
