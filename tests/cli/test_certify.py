"""``unisono certify``: a quick certificate, looked at again; damaged ones, other machines, no device: code 2."""

import json

import pytest
from click.testing import CliRunner

from unisono.cli.main import unisono
from unisono.experiments import certify as experiment
from unisono.experiments.certify import checks
from unisono.experiments.certify.bench import Bench
from unisono.experiments.certify.certificate import CERTIFIED, FAILED, KIND, NOT_RUN, Row, content_hash, read, seal
from unisono.experiments.certify.operations import ATOMIC, CONTROL, DTYPES, OPERATIONS
from unisono.experiments.certify.trainings import WAYS


def asked(*arguments):
    return CliRunner().invoke(unisono, ["certify", *map(str, arguments)])


def refused(*arguments):
    """Return the one line by which it was refused."""
    done = asked(*arguments)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def rows_of(found):
    return {row["name"]: row["verdict"] for row in found["rows"]}


@pytest.mark.slow
def test_a_quick_certificate(tmp_path):
    """Real processes: all that runs is certified; the file is of this machine, a changed fact is another's."""
    done = asked("--quick", "--json", "--out", tmp_path / "c")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found == read((tmp_path / "c" / "certificate.json").read_bytes(), "c")
    assert [name for name, verdict in rows_of(found).items() if verdict == CERTIFIED] == [
        "same bits, fp32", "same bits, bf16", "same bits, fp16",
        "same bits, TF32", "same bits, optimizers", "kill and resume", "same strategies", "same operations",
    ]  # fmt: skip
    assert FAILED not in rows_of(found).values()
    assert "Certificate of" in (tmp_path / "c" / "certificate.html").read_text()
    done = asked("--check", tmp_path / "c" / "certificate.json", "-q")
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    assert ["same", "strategies", "certified"] in [line.split() for line in done.stdout.splitlines()]
    found["facts"]["torch"] = "1.0"
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**found, "sha256": content_hash(found)}))
    assert "is not of this machine as it is now: torch: '1.0' ->" in refused("--check", other)


def test_what_is_no_certificate(tmp_path):
    """Not there, a directory, damaged, of something else; and --check makes none."""
    file = tmp_path / "c.json"
    assert str(file) in refused("--check", file)
    assert str(tmp_path) in refused("--check", tmp_path)
    file.write_text("{")
    assert "no certificate, or a damaged one" in refused("--check", file)
    file.write_text(json.dumps({"kind": KIND, "version": 1}))
    assert "is damaged" in refused("--check", file)
    assert "makes none" in refused("--check", file, "--quick")
    assert "makes none" in refused("--check", file, "--out", tmp_path / "x")
    assert "expected a directory" in refused("--quick", "--out", file)


def test_no_such_device():
    """A GPU that is not there, another kind of device: refused by a worker that looked, before anything is checked."""
    import torch

    assert "expected device 'cpu', 'cuda'" in refused("--device", "mps")
    if not torch.cuda.is_available():
        assert "found none" in refused("--device", "cuda")


def test_a_failed_check_is_code_1_and_named(monkeypatch):
    """With --quiet too."""
    wrong = Row(name="same bits", claim="c", held=False, found=("linear: DIFFERENT",), control="ddp", noticed=True)
    about = {"written": "today", "device": "cpu", "quick": True, "unisono": "0"}
    monkeypatch.setattr(experiment, "certify", lambda *_, **__: seal({}, [wrong], **about))
    done = asked("-q")
    assert done.exit_code == 1
    assert "same bits FAILED: linear: DIFFERENT" in done.stderr


def left(**prints):
    return {name.replace("_", " "): {"fingerprint": value} for name, value in prints.items()}


def test_differences_fail_their_rows(tmp_path):
    """Another fingerprint on two processes, a control with equal bits: each row that looks at them fails."""
    bench = Bench(scratch=tmp_path, device="cpu", is_quick=True, tell=print)
    same = left(cnn_fp32="b", lstm_fp32="d")
    bench.found = {1: same, 2: same | left(ddp="x"), 3: left(ddp="y")}
    assert checks.same_claim(bench, "fp32").verdict == CERTIFIED
    bench.found[3] = left(ddp="x")
    assert checks.same_claim(bench, "fp32").verdict == FAILED
    bench.found |= {2: same | left(ddp="x", lstm_fp32="e"), 3: left(ddp="y")}
    row = checks.same_claim(bench, "fp32")
    assert row.verdict == FAILED
    assert "lstm fp32: DIFFERENT, 1: d, 2: e" in row.found


def test_a_training_that_was_refused_is_a_failed_row(tmp_path, monkeypatch):
    """The error is told, and the other rows go on."""
    bench = Bench(scratch=tmp_path, device="cpu", is_quick=True, tell=lambda _: None)
    names = [one.name for way in WAYS for one in bench.claims(way)]
    nothing = {name: {"refused": "no room"} for name in (*names, "ddp")}
    counts = {"fp32": {"sum": 1, CONTROL: 2}, "bf16": {"sum": 1, CONTROL: 2}}
    monkeypatch.setattr(Bench, "train", lambda *_, **__: nothing)
    monkeypatch.setattr(Bench, "run", lambda *_, **__: counts)
    found = {row.name: row for row in checks.rows(bench)}
    assert found["same bits, fp32"].verdict == FAILED
    assert "no room" in found["same bits, fp32"].found[0]
    assert found["same operations"].verdict == CERTIFIED
    assert found["same bits, optimizers"].verdict == FAILED
    assert found["several devices"].verdict == NOT_RUN


def test_operations_that_torch_refuses_certify_nothing(tmp_path, monkeypatch):
    """One result of few operations is not enough, nor a control that is the same, or refused, in one precision."""
    bench = Bench(scratch=tmp_path, device="cpu", is_quick=True, tell=print)
    names = [*OPERATIONS]
    same = {**dict.fromkeys(names, 1), CONTROL: 2}
    no = "refused by torch: no deterministic kernel"
    few, most = ({**same, **dict.fromkeys(names[:count], no)} for count in (2, 3))
    for fp32, bf16, verdict in (
        (few, few, CERTIFIED), (most, most, FAILED), (same, dict.fromkeys(same, no), FAILED),
        ({**same, "sum": 3}, same, FAILED), (same, {**same, CONTROL: 1}, FAILED), (same, {**same, CONTROL: no}, FAILED),
        ({**same, ATOMIC: 9}, same, CERTIFIED), ({**same, ATOMIC: 1}, same, FAILED),
    ):  # fmt: skip
        monkeypatch.setattr(Bench, "run", lambda *_, told=(fp32, bf16), **__: dict(zip(DTYPES, told, strict=True)))
        row = checks.same_operations(bench)
        assert row.verdict == verdict, row
        assert any("were repeated" in line for line in row.found)
        assert str(row.found).count(no) == [*fp32.values(), *bf16.values()].count(no) - (bf16[CONTROL] == no)
