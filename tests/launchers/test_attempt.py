"""One attempt on one of several hosts: what ends it when none of its own workers is left."""

import queue
import signal
import time

import pytest

from unisono.launchers.attempt import attempt
from unisono.launchers.spec import LaunchSpec, NodePlacement, ScriptTarget
from unisono.launchers.supervision.channels import HostSaid
from unisono.launchers.worker_group import Signalled

GRACE_S = 60.0


class Relay:
    """The line to a launcher that decides, by hand."""

    def __init__(self, on_death):
        self.spans, self.node, self.hosts, self.decider, self._on_death = (
            [range(1), range(1, 2)],
            1,
            (0, 1),
            0,
            on_death,
        )

    def send(self, node, message):
        if "died" in message:
            self._on_death()

    def rest(self, *, is_idle):
        """Nobody asks who would decide."""

    def arm(self, *, is_on):
        """Silence means nothing here."""


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

    program = tmp_path / "dies.py"
    program.write_text("import os; os.kill(os.getpid(), 9)")
    here = NodePlacement(
        node_rank=1, num_nodes=2, first_rank=1, world_size=2, master_addr="127.0.0.1", master_port=1, interface="lo",
        attempt=0, run_id="none", store="127.0.0.1:1", secret="none",
    )  # fmt: skip
    spec = LaunchSpec(
        target=ScriptTarget(path=str(program)), live="auto", placement=here, output="quiet", stop_grace_s=GRACE_S
    )
    began = time.monotonic()
    assert attempt(spec, events, Relay(on_death)) == Signalled(signal.SIGINT)
    assert time.monotonic() - began < GRACE_S / 2
