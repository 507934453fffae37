"""One attempt on one of several hosts: what ends it, and what it goes on in spite of."""

import queue
import signal
import time
from dataclasses import replace

import pytest

from unisono.launchers.attempt import attempt, tell_of_crowd
from unisono.launchers.outcomes import Ended, Failed
from unisono.launchers.spec import LaunchSpec, NodePlacement, ScriptTarget
from unisono.launchers.supervision.channels import HostSaid
from unisono.launchers.worker_group import Called, Signalled

GRACE_S = 60.0


class Relay:
    """The line to a launcher that decides, by hand."""

    def __init__(self, on_death, on_end=lambda: None):
        self.spans, self.node, self.hosts, self.decider = [range(1), range(1, 2)], 1, (0, 1), 0
        self._on_death, self._on_end = on_death, on_end

    def send(self, node, message):
        if "died" in message:
            self._on_death()
        elif "told" not in message:
            self._on_end()

    def rest(self, *, is_idle):
        """Nobody asks who would decide."""

    def arm(self, *, is_on):
        """Silence means nothing here."""


def spec_of(folder, program, live="auto"):
    """Return a launch of one worker beside another host's."""
    path = folder / "program.py"
    path.write_text(program)
    here = NodePlacement(
        node_rank=1, num_nodes=2, first_rank=1, world_size=2, master_addr="127.0.0.1", master_port=1, interface="lo",
        attempt=0, run_id="none", store="127.0.0.1:1", secret="none",
    )  # fmt: skip
    return LaunchSpec(
        target=ScriptTarget(path=str(path)), live=live, placement=here, output="quiet", stop_grace_s=GRACE_S
    )


@pytest.mark.parametrize("is_excluded", [False, True])
def test_asked_to_stop_when_all_workers_are_dead(tmp_path, is_excluded):
    """The first signal ends it, at once: here is nobody who could stop after a step."""
    events = queue.SimpleQueue()

    def on_death():
        if is_excluded:
            events.put(
                HostSaid(0, {"excluded": [1], "places": [], "can_lose": False, "reason": "", "is_closed": False})
            )
        events.put(Signalled(signal.SIGINT))

    began = time.monotonic()
    spec = spec_of(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert attempt(spec, events, Relay(on_death)) == Signalled(signal.SIGINT)
    assert time.monotonic() - began < GRACE_S / 2


@pytest.mark.parametrize("live", ["auto", "off"])
def test_a_host_has_come_and_nothing_is_saved(tmp_path, live):
    """Workers that go on without others keep what would be lost; the control: without live recovery they end."""
    events = queue.SimpleQueue()
    events.put(Called("a host has come", is_gentle=True))
    relay = Relay(lambda: None, lambda: events.put(HostSaid(0, {"over": True})))
    outcome = attempt(spec_of(tmp_path, "import time; time.sleep(1)", live), events, relay if live == "auto" else None)
    assert outcome == (None if live == "auto" else Ended("a host has come", is_gentle=True))


@pytest.mark.parametrize(("end", "could_go_on_live"), [("os.kill(os.getpid(), 9)", True), ("os._exit(3)", False)])
def test_which_deaths_live_recovery_is_for(tmp_path, end, could_go_on_live):
    """It is for workers that are killed: who ends by an exit code is not told of it."""
    outcome = attempt(spec_of(tmp_path, f"import os; {end}", "off"), queue.SimpleQueue())
    assert isinstance(outcome, Failed)
    assert outcome.ending.could_go_on_live == could_go_on_live


def test_many_workers_are_told_of_before_they_start(monkeypatch, capfd):
    """How many on how many cores, how long, how much memory; not with a few, nor again with a restart."""
    monkeypatch.setattr("unisono.launchers.attempt.usable_cores", lambda: 2)
    spec = LaunchSpec(target=ScriptTarget(path="train.py"), workers=99)
    tell_of_crowd(spec, is_forked=False)
    err = capfd.readouterr().err
    assert (
        "unisono: starting 99 workers on 2 cores: about 99 s until all have loaded torch, and about 15.8 GB of" in err
    )
    for other in (replace(spec, workers=8), replace(spec, attempt=1), replace(spec, output="quiet")):
        tell_of_crowd(other, is_forked=False)
    assert capfd.readouterr().err == ""
    tell_of_crowd(replace(spec, workers=8, live="auto", spares=1), is_forked=True)
    assert "starting 9 workers" in capfd.readouterr().err


def test_an_attempt_tells_of_many_workers_first(tmp_path, monkeypatch, capfd):
    """Before any of them says a word."""
    monkeypatch.setattr("unisono.launchers.attempt.usable_cores", lambda: 1)
    (tmp_path / "program.py").write_text("print('here')")
    spec = LaunchSpec(target=ScriptTarget(path=str(tmp_path / "program.py")), workers=5, output="stderr")
    assert attempt(spec, queue.SimpleQueue()) is None
    assert capfd.readouterr().err.startswith("unisono: starting 5 workers on 1 core: ")
