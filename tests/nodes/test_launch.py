"""Two launchers on loopback are two hosts: the same bits as one process, whatever happens to one of them."""

import contextlib
import json
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from gpus import pretend_gpus, told
from hosts import JOB, differs, free_port, gate, result_of

RESTARTS = ("--max-restarts", "3")
QUICK = ("--heartbeat", "8")


def listeners(*hosts) -> set[str]:
    """Return the addresses, in hex, on which launchers and their workers listen."""
    pids = [pid for host in hosts for pid in (host.process.pid, *(one.pid for one in host.readings()))]
    owned, found = set(), set()
    for link in (link for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            owned.add(str(link.readlink()))
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            local, state, inode = (line.split()[column] for column in (1, 3, 9))
            if state == "0A" and f"socket:[{inode}]" in owned:
                found.add(local.partition(":")[0])
    return found


def test_two_hosts_equal_one_process(hosts, reference):
    """Node ranks by hand, a directory for each host: the bits of one process in both, and no port beyond loopback."""
    first = hosts.start("a", gate(6), rank=0, out="own")
    second = hosts.start("b", rank=1, out="own")
    second.wait_for_step(6)
    assert listeners(first, second) == {"0100007F"}  # 127.0.0.1
    hosts.open(6)
    assert hosts.finish() == [0, 0], hosts.words()
    for host in (first, second):
        assert differs(host.folder / "own", reference) == ""
    assert result_of(first.folder / "own")["world_size"] == 2
    assert "is a directory of its own for each host: ranks 0, 1 each keep the whole run" in first.err
    assert "node rank 0" in first.err and "is the rendezvous host" in first.err + second.err


@pytest.mark.slow
def test_other_code_on_one_host(hosts, tmp_path):
    """Both end with code 2 and name the host, the number and both hashes."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text(f"print({name!r})")
    first = hosts.start("a", script=tmp_path / "a.py", rank=0)
    second = hosts.start("b", script=tmp_path / "b.py", rank=1)
    assert hosts.finish(timeout_s=60) == [2, 2], hosts.words()
    for host in (first, second):
        assert re.search(
            r"code of the program, as SHA-256: \w{12} on node rank \d \(.*\w{12} on node rank \d", host.err
        )


@pytest.mark.slow
def test_a_worker_dies(hosts, reference):
    """A worker killed on the second host: both say so, all start again from the last commit, one shared directory."""
    first = hosts.start("a", "forward@9:3", rank=0, workers=2, options=RESTARTS)
    second = hosts.start("b", "forward@9:3", rank=1, workers=2, options=RESTARTS)
    assert hosts.finish() == [0, 0], hosts.words()
    assert differs(hosts.out, reference) == ""
    assert 4 <= result_of(hosts.out)["resumed_from_step"] <= 8
    for host in (first, second):
        assert "rank 3 of 4 was killed by SIGKILL" in host.err
        assert "Restart 1 on all hosts from the last checkpoint" in host.err  # the dead one's host does not know of any


@pytest.mark.slow
def test_a_worker_raises(hosts):
    """Without restarts, both hosts end with the code of the worker that failed, and show its traceback."""
    for rank in (0, 1):
        hosts.start("ab"[rank], "raise!@3:1", rank=rank)
    assert hosts.finish() == [1, 1], hosts.words()
    for host in hosts.started:
        assert "rank 1 of 2 failed with ValueError: a bad sample" in host.err
        assert "job.py" in host.err


@pytest.mark.slow
def test_hosts_come_and_go(hosts, reference):
    """Elastic: one begins, a second comes and is lost with all its processes, a third comes and is asked to leave."""
    elastic = {"nodes": "1:2", "options": QUICK}
    gates = [gate(step) for step in (5, 12, 20)]
    first = hosts.start("a", *gates, **elastic)
    first.wait_for_step(5)
    second = hosts.start("b", *gates, **elastic)
    first.wait_until_asked()
    hosts.open(5)
    second.wait_for_step(12)
    second.kill_everything()
    first.wait_for_words("attempt 2: 1 hosts")
    first.wait_for_step(12)
    assert "does not answer any more" in first.err
    third = hosts.start("c", *gates, **elastic)
    first.wait_until_asked()
    hosts.open(12)
    third.wait_for_step(20)
    third.process.send_signal(signal.SIGTERM)
    third.wait_until_asked()
    hosts.open(20)
    assert third.finish() == 75, third.err
    assert first.finish() == 0, hosts.words()
    assert differs(hosts.out, reference) == ""
    assert "was asked to stop and leaves" in first.err
    assert result_of(hosts.out)["replicas"] == 4


@pytest.mark.slow
def test_the_keeper_of_the_store_is_lost(hosts, reference):
    """Who keeps the rendezvous takes it along: the other says so and ends; the same commands go on."""
    first = hosts.start("a", gate(10), rank=0, options=QUICK)
    second = hosts.start("b", rank=1, options=QUICK)
    second.wait_for_step(10)
    first.kill_everything()
    began = time.monotonic()
    assert second.finish(60) == 1, second.err
    assert time.monotonic() - began < 30
    assert "lost the rendezvous" in second.err and "Hint: start the same command again" in second.err
    assert "If the host that keeps the rendezvous does not come back: the same command without --nnodes" in second.err
    again = [hosts.start(name, rank=rank) for rank, name in enumerate(("a2", "b2"))]
    assert hosts.finish(*again) == [0, 0], hosts.words()
    assert result_of(hosts.out)["resumed_from_step"] >= 4
    assert differs(hosts.out, reference) == ""


@pytest.mark.slow
def test_directories_of_their_own_after_a_loss(hosts, reference):
    """The first host's directory is lost: the run goes on from the other's, which sends state and ledger."""
    first = hosts.start("a", gate(10), rank=0, out="own")
    second = hosts.start("b", rank=1, out="own")
    second.wait_for_step(10)
    first.process.send_signal(signal.SIGTERM)
    first.wait_until_asked()
    hosts.open(10)
    assert hosts.finish() == [75, 75], hosts.words()
    stopped = result_of(second.folder / "own")["steps"]
    assert stopped == result_of(first.folder / "own")["steps"]
    (first.folder / "own").rename(first.folder / "lost")
    again = [hosts.start(name, rank=rank, out="own") for rank, name in enumerate("ab")]
    assert hosts.finish(*again) == [0, 0], hosts.words()
    for host in again:
        assert differs(host.folder / "own", reference) == ""
        assert result_of(host.folder / "own")["resumed_from_step"] == stopped


@pytest.mark.slow
def test_two_hosts_with_one_rank_and_one_that_is_taken(hosts):
    """Two of three with one node rank: all end and name both. One more beside a run at work: only that one ends."""
    twins = [hosts.start(name, nodes="3", rank=rank) for name, rank in (("a", 0), ("b", 1), ("c", 1))]
    assert hosts.finish(*twins, timeout_s=60) == [2, 2, 2], hosts.words()
    for host in twins:
        assert "two hosts say that they are node rank 1: node rank 1" in host.err
    hosts.endpoint = hosts.endpoint.replace("127.0.0.1", "127.0.0.2")
    pair = [hosts.start(name, gate(2), rank=rank) for name, rank in (("d", 0), ("e", 1))]
    pair[1].wait_for_step(2)
    late = hosts.start("f", rank=1)
    assert late.finish(60) == 2, late.err
    assert re.search(r"node rank 1 is taken by node rank 1 \(.*\), which is at work", late.err)
    hosts.open(2)
    assert hosts.finish(*pair) == [0, 0], hosts.words()


@pytest.mark.slow
def test_nobody_comes(hosts, tmp_path):
    """Alone: who keeps the store says who is missing, who looks for it says why it is not reached; in time."""
    waits = hosts.start("a", rank=0, options=("--rdzv-timeout", "3"))
    assert waits.finish(60) == 2, waits.err
    assert "expected 2 hosts (--nnodes) within 3 s (--rdzv-timeout), got 1: node rank 0" in waits.err
    assert "Missing: node rank 1." in waits.err
    hosts.endpoint = "127.0.0.1:1"
    looks = hosts.start("b", rank=1, options=("--rdzv-timeout", "2"))
    assert looks.finish(60) == 1, looks.err
    assert "no host answers at the rendezvous 127.0.0.1:1 after 2 s" in looks.err
    assert "Permission denied" in looks.err or "nothing listens there" in looks.err


@pytest.mark.slow
def test_other_settings_on_one_host(hosts):
    """A score that differs between hosts is refused by all ranks before the first step."""
    script = hosts.folder / "seeds.py"
    script.write_text(
        "import sys, torch, unisono\n"
        "with unisono.Run(seed=int(sys.argv[2]), replicas=2, out=sys.argv[1]) as run:\n"
        "    torch.manual_seed(0)\n"
        "    model = torch.nn.Linear(4, 2)\n"
        "    model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "    data = unisono.ArrayDataset(torch.zeros(8, 4).numpy(), torch.zeros(8, dtype=torch.long).numpy())\n"
        "    for batch in run.steps(run.loader(data, batch_size=4), epochs=1):\n"
        "        run.step(batch, lambda m: torch.nn.functional.cross_entropy(model(m[0]), m[1]))\n"
    )
    for rank in (0, 1):
        hosts.start("ab"[rank], str(rank), rank=rank, script=script)
    codes = hosts.finish()
    assert 0 not in codes, hosts.words()
    for host in hosts.started:
        assert re.search(r"differ before the first step: seed: \d -> \d", host.err), host.err
        assert "the program's arguments" in hosts.words()


@pytest.mark.slow
def test_programs_of_others_on_two_hosts(hosts):
    """A plain torch.distributed program, as torchrun starts it, runs on two hosts unchanged."""
    script = hosts.folder / "plain.py"
    script.write_text(
        "import os, sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "value = torch.tensor([float(dist.get_rank() + 1)])\n"
        "dist.all_reduce(value)\n"
        "names = ('RANK', 'LOCAL_RANK', 'GROUP_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE')\n"
        "text = ' '.join([str(value.item()), *map(os.environ.get, names)])\n"
        "open(sys.argv[1] + os.environ['RANK'], 'w').write(text)\n"
        "dist.destroy_process_group()\n"
    )
    for rank in (0, 1):
        hosts.start("ab"[rank], rank=rank, workers=rank + 1, script=script, out=hosts.folder / "told")
    assert hosts.finish() == [0, 0], hosts.words()
    told = [(hosts.folder / f"told{rank}").read_text() for rank in range(3)]
    assert told == ["6.0 0 0 0 3 1", "6.0 1 0 1 3 2", "6.0 2 1 1 3 2"]


@pytest.mark.slow
def test_two_hosts_meet_over_ipv6(hosts):
    """An endpoint in brackets: the workers are told of the same address and interface."""
    try:
        port = free_port("::1")
    except OSError as error:
        pytest.skip(f"there is no IPv6 loopback here: {error}")
    hosts.endpoint = f"[::1]:{port}"
    script = hosts.folder / "told.py"
    script.write_text("import os; print(os.environ['MASTER_ADDR'], os.environ['GLOO_SOCKET_IFNAME'])")
    pair = [hosts.start("ab"[rank], rank=rank, script=script) for rank in (0, 1)]
    assert hosts.finish() == [0, 0], hosts.words()
    assert [host.out_file.read_text() for host in pair] == [f"[rank {rank}] ::1 lo\n" for rank in (0, 1)]


@pytest.mark.slow
def test_each_host_chooses_its_own_gpus(hosts):
    """Host a's ranks see its two chosen ones, host b's rank its one; too many ranks are refused first."""
    hosts.env |= pretend_gpus(hosts.folder, 4)
    script = hosts.folder / "nothing.py"
    script.write_text("")
    hosts.start("a", rank=0, workers=2, options=("--devices", "0,2"), script=script)
    hosts.start("b", rank=1, options=("--devices", "3"), script=script)
    assert hosts.finish() == [0, 0], hosts.words()
    assert told(hosts.folder) == ["0,2", "0,2", "3"]
    refused = hosts.start("c", rank=0, workers=2, options=("--devices", "1"), script=script)
    assert refused.finish(60) == 2, refused.err
    assert "expected a GPU for each worker, got 2 workers and 1 GPU." in refused.err


@pytest.mark.slow
def test_torchrun_on_two_hosts(hosts, reference):
    """Torch's own launchers run our scripts on two hosts unchanged, with the same bits."""
    common = ["--nnodes", "2", "--nproc-per-node", "1"]
    for name in "ab":
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", hosts.endpoint]
        hosts.launch(name, [sys.executable, "-m", "torch.distributed.run", *common, *rendezvous, JOB, hosts.out])
    assert hosts.finish() == [0, 0], hosts.words()
    assert differs(hosts.out, reference) == ""
    port = str(free_port())
    again = []
    for rank, name in enumerate("cd"):
        place = ["--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", port]
        command = [
            sys.executable,
            "-m",
            "torch.distributed.launch",
            "--use-env",
            *common,
            *place,
            JOB,
            hosts.folder / "again",
        ]
        again.append(hosts.launch(name, command))
    assert hosts.finish(*again) == [0, 0], hosts.words()
    assert differs(hosts.folder / "again", reference) == ""


@pytest.mark.slow
def test_a_recipe_on_two_hosts(hosts):
    """`unisono train` on two hosts prints one fingerprint on both: that of one process."""
    train = [sys.executable, "-m", "unisono", "train", "digits", "--epochs", "1", "--limit", "200", "--json"]
    meet = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", hosts.endpoint.rpartition(":")[2]]
    pair = [hosts.launch("ab"[rank], [*train, *meet, "--node-rank", str(rank), "-n", "1"]) for rank in (0, 1)]
    alone = hosts.launch("c", [*train, "-n", "1"])
    assert hosts.finish() == [0, 0, 0], hosts.words()
    told = [json.loads(host.out_file.read_text()) for host in (*pair, alone)]
    assert len({each["fingerprint"] for each in told}) == 1
    assert [each["world_size"] for each in told] == [2, 2, 1]
