"""Another user of this machine cannot put anything into the launchers' store; into torch's rendezvous he could."""

import ast
import base64
import contextlib
import os
import pickle
import socket
import warnings
from pathlib import Path

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

from unisono.launchers.local import Signals
from unisono.nodes.network import Interface
from unisono.nodes.plan import NodesPlan
from unisono.nodes.rendezvous import Rendezvous
from unisono.nodes.roll import NodeInfo
from unisono.store.client import Client, NotOurStore
from unisono.store.secret import key_of

SOURCE = Path(__file__).parents[2] / "src" / "unisono"
CARD = NodeInfo(
    number=0, host="here", address="127.0.0.1", probe_port=1, pid=1, workers=1, nodes="2:2", node_rank=-1, program="p",
    code="c" * 64, arguments="", software="s", threads="1", rules="r",
)  # fmt: skip


class Exploit:
    """Unpickled, it makes a file, as whoever unpickles it."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def as_stranger(act):
    """Do something in a process of another user, if we may become one; return whether it went well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of newer Pythons, about threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            act()
            code = 0
        except Exception:  # noqa: BLE001 - told by the code
            code = 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_torchs_rendezvous_runs_what_a_stranger_has_put_there(tmp_path):
    """The control: the way that hosts met before. One key in torch's store, and the reader runs it."""
    keeper = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    payload = base64.b64encode(pickle.dumps(Exploit(tmp_path / "ours now")))

    def attack():
        TCPStore("127.0.0.1", keeper.port, is_master=False, wait_for_workers=False).set(
            "torch.rendezvous.unisono.none", payload
        )

    assert as_stranger(attack)
    backend = C10dRendezvousBackend(keeper, "unisono.none")  # leaves what it finds
    with contextlib.suppress(Exception):  # what it makes of a None afterwards is its own affair
        DynamicRendezvousHandler.from_backend("unisono.none", keeper, backend, 1, 2).num_nodes_waiting()
    assert (tmp_path / "ours now").exists()


def test_a_stranger_gets_nothing_into_ours(tmp_path, capfd):
    """Neither torch's protocol, nor ours with a guessed secret, nor bytes without a proof; he is named, once."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as held:
        port = held.getsockname()[1]
    plan = NodesPlan(min_nodes=2, max_nodes=2, host="127.0.0.1", port=port, join_s=30)
    place = Rendezvous(plan, Interface("lo", "127.0.0.1"), lambda number: CARD, Signals(), 20, tmp_path / "cache")
    try:
        before = place._client.ask(b"count")

        def guess():
            for secret in ("", "unisono", "launchers", "none"):
                with contextlib.suppress(NotOurStore):
                    Client("127.0.0.1", port, key_of(secret)).ask(b"set", b"unisono/none/round", b"[9,[],false]")
                    raise SystemExit(2)

        def write_raw():
            for data in (pickle.dumps(Exploit(tmp_path / "ours now")), b"UNISONO1" + bytes(64), b"\0" * 200):
                with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
                    sock.sendall(data)
                    while sock.recv(1000):
                        pass

        def read_the_secret():
            (tmp_path / "cache" / "secret").read_text()

        assert as_stranger(guess)
        as_stranger(write_raw)
        if os.geteuid() == 0:
            assert not as_stranger(read_the_secret)
        assert place._server.refused >= 4
        assert place.values.look("round") is None
        assert place._client.ask(b"count") == before or int(place._client.ask(b"count")[0]) <= int(before[0]) + 1
        assert capfd.readouterr().err.count("refused a connection from 127.0.0.1") == 1
    finally:
        place.close(is_over=False)
    assert not (tmp_path / "ours now").exists()


OPENS_PICKLES = {"all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list",
                 "send_object_list", "recv_object_list"}  # fmt: skip


def pickles_from_sockets(source):
    """Return what in a source unpickles, or calls what does."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [name for name in names if name == "pickle" or "elastic" in name.split(".")]
        called = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        found += [called] if called in OPENS_PICKLES else []
    return found


def test_nothing_from_a_socket_is_unpickled():
    """No room that talks over sockets unpickles, or uses torch's rendezvous or object collectives."""
    files = [path for room in ("nodes", "collectives", "store") for path in (SOURCE / room).rglob("*.py")]
    assert len(files) > 40
    assert {path.name: found for path in files if (found := pickles_from_sockets(path.read_text()))} == {}
    control = "from torch.distributed.elastic.rendezvous import X\nimport pickle\ndist.all_gather_object(a, b)\n"
    assert len(pickles_from_sockets(control)) == 3
