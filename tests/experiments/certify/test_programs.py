"""What workers run for a certificate of a GPU, on the strict device; and the row that is made of it."""

from experiments.certify import waits_programs
from ranks import run_processes
from unisono.experiments.certify import checks
from unisono.experiments.certify.programs import READING


def test_steps_wait_for_one_event(tmp_path, monkeypatch):
    """No strategy that one process can run waits otherwise; a loss function that reads its loss is noticed."""
    found = run_processes(waits_programs.counted, 1)[0]
    assert found.pop(READING) == [2, 2]
    assert {name: each for name, each in found.items() if any(each)} == {}
    assert len(found) == 7

    bench = checks.Bench(scratch=tmp_path, device="fake:0", is_quick=True, tell=print)
    monkeypatch.setattr(checks.Bench, "run", lambda self, program, workers, device: {**found, READING: [2, 2]})
    row = checks.waits(bench)
    assert row.held and row.noticed
    monkeypatch.setattr(checks.Bench, "run", lambda self, program, workers, device: {**found, READING: [0, 0]})
    assert not checks.waits(bench).noticed, "a control that sees nothing"
    worse = {**found, "fsdp": [0, 1], READING: [2, 2]}
    monkeypatch.setattr(checks.Bench, "run", lambda self, program, workers, device: worse)
    assert not checks.waits(bench).held
    on_cpu = checks.waits(checks.Bench(scratch=tmp_path, device="cpu", is_quick=True, tell=print))
    assert "about GPUs" in on_cpu.why_not
