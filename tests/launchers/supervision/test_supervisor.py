"""What is said of workers that stand still, on made-up clocks."""

import types

import pytest

from unisono.launchers.supervision import stacks, supervisor
from unisono.launchers.supervision.supervisor import Supervisor
from unisono.system.heartbeat import JOINED, Reading


@pytest.mark.parametrize("is_apart", [True, False])
def test_a_wait_in_vain_is_told_early(is_apart, monkeypatch, capfd):
    """After seconds where the ranks wait in different calls; where all wait in one, only with the late report."""
    now = [0.0]
    monkeypatch.setattr(supervisor, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    calls = [stacks.Frame(f"{stacks._PACKAGE}/collectives/places.py", "9", name) for name in ("barrier", "all_gather")]
    user = stacks.Frame("/home/me/train.py", "31", "main")

    def readings(of_guests=False):
        return {} if of_guests else dict.fromkeys(range(2), Reading(beats=int(now[0]), pid=1, state=JOINED))

    group = types.SimpleNamespace(
        spec=types.SimpleNamespace(output="prefix", heartbeat_s=0, hang_s=30, placement=None), exits={},
        readings=readings,
        stacks=lambda ranks: {rank: [calls[rank * is_apart], user] for rank in ranks},
    )  # fmt: skip
    watcher = Supervisor(group)
    while now[0] < 29:
        watcher.look()
        now[0] += 1
    assert ("nothing has moved for 5 s" in capfd.readouterr().err) == is_apart
    while now[0] < 32:
        watcher.look()
        now[0] += 1
    assert "nothing has moved for 30 s" in capfd.readouterr().err
