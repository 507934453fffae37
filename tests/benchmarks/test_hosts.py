"""Speed between hosts: what a cell's rows say of its times, and what is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FACTS = {
    "model": "MLP", "hosts": 2, "ranks a host": 1, "link": "1gbit", "variant": "", "Mbit/s": 950.0,
    "one way, Mbit/s": 950.0, "batch": 128, "MB of gradients": 30.0, "wire_ms": 250.0, "buckets": "2.0, 28.0",
    "command": "python benchmarks/hosts.py",
}  # fmt: skip


def hosts(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "hosts.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env}, timeout=60)


def rows_of(monkeypatch, compute_ms: float, ours_ms: float, theirs_ms: float, **more: float):
    """Return the rows of a cell whose rounds are all alike, by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from hosts_records import records

    times = {"ddp": theirs_ms, "exact-2": ours_ms, "compute-2": compute_ms, **more}
    found = {way: [{"seconds": ms / 1e3, "sent": 30e6}] * 6 for way, ms in times.items()}
    return {row.name: row for row in records("cell", found, FACTS, dict.fromkeys(found, True))}


@pytest.mark.parametrize(
    ("compute", "ours", "theirs", "bar", "verdict", "share", "near"),
    [
        (100.0, 260.0, 300.0, 1.0, "met", 96.154, "met"),  # the wire; the limit allows 1.2
        (100.0, 300.0, 330.0, 1.15, "missed", 83.333, "missed"),  # allows 1.32: 1.1 is too little
        (280.0, 290.0, 285.0, 1.0, "missed", 96.552, "met"),  # computing
    ],
)
def test_bars_follow_the_limit(compute, ours, theirs, bar, verdict, share, near, monkeypatch):
    """The limit is the longer of computing and wire; where it allows 1.25 times DDP's speed, 1.15 is asked for."""
    rows = rows_of(monkeypatch, compute, ours, theirs)
    speed, limit = rows["cell-exact-2"], rows["cell-exact-2-limit"]
    assert (speed.bar.at_least, speed.verdict, speed.ratio_interval) == (bar, verdict, [speed.ratio] * 2)
    assert (limit.median, limit.verdict) == (share, near)
    assert speed.settings["limit, ms"] == max(compute, 250.0)


def test_other_kinds_of_ddp_are_told(monkeypatch):
    """Beside DDP as it is, without a bar."""
    row = rows_of(monkeypatch, 100.0, 260.0, 300.0, **{"ddp-whole": 400.0})["cell-ddp-whole"]
    assert (row.ratio, row.verdict) == (0.75, "told")


@pytest.mark.parametrize(("live", "verdict"), [(261.0, "met"), (270.0, "missed")])
def test_live_recovery_stands_beside_the_step_without_it(live, verdict, monkeypatch):
    """Its bar is one hundredth of the time of a step of the same processes."""
    row = rows_of(monkeypatch, 100.0, 250.0, 300.0, live=live, off=260.0)["cell-live"]
    assert (row.peer, row.peer_median, row.verdict) == ("live recovery off", 260.0, verdict)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--models", "MLP,GTP"], "expected --models of SimpleCNN, GatedCNN, MLP, GPT; got GTP"),
        (["--links", "5gbit"], "expected --links of none, 10gbit, 1gbit, 200mbit, 100mbit, 10mbit; got 5gbit"),
        (["--hosts", "1"], "expected --hosts from 2 to 8, got '1'"),
        (["--replicas", "x"], "expected --replicas to be numbers, got 'x'"),
        (["--ranks", "0"], "expected --ranks from 1 to 8, got 0"),
        (["--run", "{"], "expected --run to be JSON, got '{'"),
    ],
)
def test_what_is_no_cell(words, said):
    """One line and 2."""
    done = hosts(*words)
    assert (done.returncode, done.stderr) == (2, f"hosts.py: {said}\n")


def test_without_the_means_it_says_so():
    """Without root or `ip`: the reason, and 2."""
    done = hosts(PATH="")
    assert done.returncode == 2
    assert done.stderr.startswith("hosts.py: left out, needs ")


def test_hosts_of_a_killed_one_go(monkeypatch):
    """Namespaces whose process is gone are removed at the next start; those of a living one stay."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from catalogue import lacking_network

    from cluster.namespaces import remove_left_overs

    if why := lacking_network():
        pytest.skip(why)
    gone = subprocess.Popen(["true"])
    gone.wait()
    names = [f"unisono-{pid}-try{os.getpid()}-h1" for pid in (gone.pid, os.getpid())]
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        remove_left_overs()
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        assert [name in listed for name in names] == [False, True]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
