"""``unisono scale``: a run that is at work shrinks and grows, and has the bits of a calm one; who may not is told."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from report.made_runs import make_run
from unisono.cli.scale import scale
from unisono.launchers.control import CONTROL_FILE
from unisono.system.directory import Directory
from unisono.train.run_directory.lock import RunLock

WAIT_S = 200
PROGRAM = """
import atexit, sys, time, torch, unisono

atexit.register(time.sleep, 1)
out, steps, pause_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with unisono.Run(seed=1, replicas=4, out=out, checkpoint_every=10**6) as run:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
    model, optimizer = run.prepare(model, torch.optim.Adam(model.parameters()))
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4) / 64, torch.arange(16) % 2)
    for batch in run.steps(run.loader(data, batch_size=8), max_steps=steps):
        time.sleep(pause_s)
        run.step(batch, lambda micro: torch.nn.functional.cross_entropy(model(micro.x), micro.y))
"""


def asked(*arguments):
    """Return exit code and output of the verb."""
    result = CliRunner().invoke(scale, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def awaited(look):
    """Return what `look` finds, once it finds something."""
    until = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < until, "it has not come in time"
        time.sleep(0.01)
    return found


def ledger(path):
    """Return of each step its number, loss and digests."""
    lines = (path / "ledger.jsonl").read_text().splitlines()
    return [[json.loads(line).get(name) for name in ("step", "loss", "gradient", "weights")] for line in lines]


@pytest.mark.slow
def test_a_training_shrinks_and_grows(tmp_path):
    """Four workers, two, three, and the leader is killed right before it shrinks to two; then the run is stopped,
    while those that were released are still at the end of their program.
    """
    program, calm, moved = tmp_path / "program.py", tmp_path / "calm", tmp_path / "moved"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "unisono", "run", "-n"]
    start = [*command, "4", "--live", "auto", "--elastic", "2:4", program, moved, "1000000", "0.004"]
    with subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            awaited((moved / CONTROL_FILE).exists)
            for workers in (1, 5):
                code, told = asked(moved, workers)
                assert (code, "expected 2 to 4 workers" in told, told.count("\n")) == (2, True, 1)
            code, told = asked(moved, 2, "--json")
            assert (code, json.loads(told)["left"]) == (0, [2, 3])
            code, told = asked(moved, 3)
            assert (code, told.startswith("3 workers, 2 before"), "rank 4 has joined" in told) == (0, True, True)
            os.kill(json.loads((moved / "run.lock").read_text())["pid"], signal.SIGKILL)
            code, told = asked(moved, 2)
            assert (code, told.startswith("2 workers")) == (0, True)
        finally:
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 75, said
    assert not (moved / CONTROL_FILE).exists()
    code, told = asked(moved, 2)
    assert (code, "which has ended" in told) == (2, True)
    count = len(ledger(moved))
    subprocess.run([*command, "1", program, calm, str(count), "0"], timeout=WAIT_S, check=True, capture_output=True)
    assert ledger(moved) == ledger(calm)
    results = [json.loads((path / "result.json").read_text()) for path in (moved, calm)]
    assert results[0]["fingerprint"] == results[1]["fingerprint"]
    assert [results[0][name] for name in ("deaths", "joins", "released")] == [1, 1, 2]


def test_what_cannot_be_asked(tmp_path):
    """No run, an ended one, one that cannot change, one whose launcher was killed; no workers: one line, code 2."""
    run = make_run(tmp_path / "run")
    assert "expected a run directory" in asked(tmp_path, 2)[1]
    assert "which has ended" in asked(run, 2)[1]
    result = (run / "result.json").read_bytes()
    (run / "result.json").unlink()
    with Directory.open(run) as directory:
        lock = RunLock(directory)
        assert (
            "which cannot change its workers. Hint: start it with --live auto, and ask on one of its hosts"
            in asked(run, 2)[1]
        )
        lock.release()
    holder = json.loads((run / "run.lock").read_text())
    (run / "run.lock").write_text(json.dumps(holder | {"start_ticks": 0}))
    assert "which has no launcher any more" in asked(run, 2)[1]
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(run / CONTROL_FILE))
    told = asked(run, 2)[1]
    assert "no launcher any more on this host. Hint: it was killed, and left its socket behind" in told
    (run / "result.json").write_bytes(result)  # it was finished without a launcher
    assert "which has ended" in asked(run, 2)[1]
    (run / "result.json").unlink()
    for arguments in ((tmp_path, 2), (run, 2), (run, 0), (run, "many"), (run,)):
        assert asked(*arguments)[0] == 2
    assert asked(run, 2)[1].count("\n") == 1
