"""What workers run for a certificate of a GPU, on the strict device; and the row that is made of it."""

import pytest

from experiments.certify import waits_programs
from forks import run_forked
from unisono.experiments.certify import device_checks
from unisono.experiments.certify.bench import Bench
from unisono.experiments.certify.programs import ADDED, ADDING, READING


def test_steps_wait_for_one_event(tmp_path, monkeypatch):
    """No strategy that one process can run waits otherwise; a loss function that reads its loss is noticed."""
    found = run_forked(waits_programs.counted, 1)[0]
    assert found.pop(READING) == [2, 2]
    assert {name: each for name, each in found.items() if any(each)} == {}
    assert len(found) == 7

    bench = Bench(scratch=tmp_path, device="fake:0", is_quick=True, tell=print)
    monkeypatch.setattr(Bench, "run", lambda self, program, workers, device: {**found, READING: [2, 2]})
    row = device_checks.waits(bench)
    assert row.held and row.noticed
    monkeypatch.setattr(Bench, "run", lambda self, program, workers, device: {**found, READING: [0, 0]})
    assert not device_checks.waits(bench).noticed, "a control that sees nothing"
    worse = {**found, "fsdp": [0, 1], READING: [2, 2]}
    monkeypatch.setattr(Bench, "run", lambda self, program, workers, device: worse)
    assert not device_checks.waits(bench).held
    on_cpu = device_checks.waits(Bench(scratch=tmp_path, device="cpu", is_quick=True, tell=print))
    assert "about GPUs" in on_cpu.why_not


def test_steps_launch_few_kernels(tmp_path, monkeypatch):
    """Beside their passes, data and update; what a loss function adds is found, kernel by kernel."""
    found = run_forked(waits_programs.launched, 1)[0]
    bench = Bench(scratch=tmp_path, device="fake:0", is_quick=True, tell=print)
    changes = [({}, True, True), ({"exact, V = 8": 80}, False, True), ({ADDING: found["exact, V = 2"]}, True, False)]
    assert found[ADDING] == found["exact, V = 2"] + 2 * ADDED
    for change, held, noticed in changes:
        monkeypatch.setattr(Bench, "run", lambda *_, change=change: {**found, **change})
        row = device_checks.launches(bench)
        assert (row.held, row.noticed) == (held, noticed), row
    on_cpu = device_checks.launches(Bench(scratch=tmp_path, device="cpu", is_quick=True, tell=print))
    assert "about GPUs" in on_cpu.why_not


@pytest.mark.slow
def test_what_a_machine_is_and_takes():
    """A GPU's facts are in the certificate; none is refused by name; times are of what the GPU has done."""
    there, times, far, missing = run_forked(waits_programs.looked, 1)[0]
    assert there["facts"]["device_facts"]["multiprocessors"] == 1
    assert "expected a device 'fake:9', found none" in far["refused"]
    assert "sees 4 GPUs" in far["refused"]
    assert "expected a device 'fake:0', found none" in missing["refused"]
    assert "sees no GPU." in missing["refused"]
    assert [*times] == ["plain torch", "exact, V = 2"]
    assert all(0 < value < 60 for value in times.values())
