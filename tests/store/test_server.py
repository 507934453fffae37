"""The server and its clients over loopback: threads, waits, strangers, floods of bad bytes."""

import contextlib
import os
import random
import socket
import threading
import time
import warnings

import pytest

from unisono.store import client as client_module
from unisono.store import wire
from unisono.store.client import Client, NotOurStore, StoreLate, StoreLost, StoreRefused
from unisono.store.secret import key_of
from unisono.store.server import Server, ServerLimits, listen

KEY = key_of("the secret of these tests")


@pytest.fixture
def told():
    return []


@pytest.fixture
def server(told):
    """A server that is quick to lose its patience."""
    here = Server(listen("127.0.0.1", 0), KEY, told.append, ServerLimits(connections=64, strangers=8, handshake_s=1.0))
    yield here
    here.close()
    here.close()


@pytest.fixture
def client(server):
    with contextlib.closing(Client("127.0.0.1", server.port, KEY)) as here:
        yield here


def raw(server, data=b""):
    """Return a connection that has sent some bytes."""
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    sock.sendall(data)
    return sock


def is_dropped(sock):
    """Whether the server ends a connection, after its greeting; waits for it."""
    with sock:
        return _rest(sock)[: len(wire.MAGIC)] == wire.MAGIC


def _rest(sock):
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(1000):
            found += piece
    return found


def test_values(client):
    """A value comes back as it was, whatever its bytes; a key that is not there is late; large ones are refused."""
    client.ask(b"set", b"k", bytes(range(256)))
    assert client.get(b"k") == bytes(range(256))
    with pytest.raises(StoreLate, match=r"nothing about 'other' within 0.05 s"):
        client.get(b"other", 0.05)
    with pytest.raises(StoreRefused, match="at most"):
        client.ask(b"set", b"k", bytes(5 << 20))
    assert client.get(b"k") == bytes(range(256))


def test_waits_and_threads(client):
    """Ten threads wait for one key, and go on when an eleventh writes it; a wait for two keys needs both."""
    found = []
    threads = [threading.Thread(target=lambda: found.append(client.get(b"late", 30))) for _ in range(10)]
    threads.append(threading.Thread(target=lambda: client.ask(b"wait", b"30000", b"x", b"late", wait_s=30)))
    for thread in threads:
        thread.start()
    client.ask(b"set", b"x", b"")
    client.ask(b"append", b"late", b"now")
    for thread in threads:
        thread.join(30)
    assert found == [b"now"] * 10
    assert sum(len(client.ask(b"add", b"n", b"1")) for _ in range(50)) == 50
    assert client.ask(b"add", b"n", b"0") == [b"50"]


def test_another_secret(server, client, told):
    """Who has another secret is refused by name, once; nothing of his is looked into."""
    for _ in range(3):
        stranger = Client("127.0.0.1", server.port, key_of("another secret of others"))
        with pytest.raises(NotOurStore, match="has another secret"):
            stranger.ask(b"set", b"k", b"v")
    assert client.ask(b"count") == [b"0"]
    assert told == [f"refused a connection from 127.0.0.1 to port {server.port}: it does not know the run's secret."]
    assert server.refused == 3


def test_a_server_that_does_not_know_the_secret():
    """The client finds out before it asks anything: the proof is asked of both sides."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        seen = []

        def pretend():
            peer = listener.accept()[0]
            with peer:
                peer.sendall(wire.hello())
                peer.recv(1000)
                peer.sendall(bytes(wire.MAC_BYTES))
                seen.append(_rest(peer))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(NotOurStore, match="does not know the run's secret"):
            Client("127.0.0.1", listener.getsockname()[1], KEY).ask(b"set", b"secret thing", b"v")
        thread.join(30)
    assert seen == [b""]


def test_a_proof_that_was_heard_before(server, client):
    """Bytes of one connection are worth nothing on another: the challenge is new each time."""
    sent = []

    class Listening:
        def __init__(self, sock):
            self._sock = sock

        def __getattr__(self, name):
            return getattr(self._sock, name)

        def send(self, data):
            count = self._sock.send(data)
            sent.append(bytes(data[:count]))
            return count

    def connect(*args, **kwargs):
        return Listening(create(*args, **kwargs))

    create = socket.create_connection
    with pytest.MonkeyPatch.context() as patch, contextlib.closing(Client("127.0.0.1", server.port, KEY)) as observed:
        patch.setattr(client_module.socket, "create_connection", connect)
        observed.ask(b"add", b"n", b"1")
    assert is_dropped(raw(server, b"".join(sent)))
    assert client.ask(b"add", b"n", b"0") == [b"1"]


def test_strangers_in_crowds(server, client, told):
    """Silent ones, slow ones and more than there is room for are dropped in time; those who belong here get in."""
    silent = [raw(server) for _ in range(30)]
    client.ask(b"set", b"k", b"v")
    slow = raw(server, b"UNIS")
    assert all(is_dropped(sock) for sock in (*silent, slow))
    assert client.get(b"k") == b"v"
    assert server.refused == 31
    assert [line.partition("it ")[2] for line in told] == ["has proved nothing in 1 s."]
    assert not server._strangers


def test_bad_bytes(server, client):
    """Random bytes, before the proof and after it, end their own connection, and nothing else."""
    dice = random.Random(0)
    for _ in range(40):
        data = dice.randbytes(dice.choice([1, 8, 72, 4000]))
        assert is_dropped(raw(server, dice.choice([b"", wire.MAGIC]) + data.ljust(80, b"x")))
    assert is_dropped(raw(server, b"GET / HTTP/1.1\r\nHost: unisono\r\n\r\n"))
    for make in (
        lambda channel: dice.randbytes(100),
        lambda channel: b"\xff" * 100,
        lambda channel: channel.seal(b"\0\0"),
        lambda channel: channel.seal(wire.pack([b"wait", b"60000", b"never"])) * 2,
        lambda channel: channel.seal(wire.pack([b"count"]))[:-1] + b"x",
    ):
        with raw(server) as sock:
            of_server, of_client = sock.recv(wire.HELLO_BYTES), wire.hello()
            both = wire.Handshake(KEY, of_server, of_client)
            sock.sendall(of_client + both.client_proof())
            assert sock.recv(wire.MAC_BYTES) == both.server_proof()
            sock.sendall(make(both.channels()[0]))
            assert _rest(sock) == b""
    assert client.ask(b"count") == [b"0"]
    assert len(server._peers) <= 1


def test_as_many_as_there_is_room_for(server):
    """Beyond the bound connections are closed; with room again they are taken."""
    clients = [Client("127.0.0.1", server.port, KEY) for _ in range(65)]
    for each in clients[:64]:
        each.ask(b"count")
    with pytest.raises(StoreLost):
        clients[64].ask(b"count")
    clients[0].close()
    deadline = time.monotonic() + 30
    while len(server._peers) > 63:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    clients[64].ask(b"count")
    for each in clients:
        each.close()


def test_the_server_ends(server, client):
    """Who waits hears of it at once; so does who comes later."""
    client.ask(b"count")
    threading.Timer(0.2, server.close).start()
    with pytest.raises(StoreLost, match=r"closed the connection|broke"):
        client.get(b"never", 60)
    with pytest.raises(StoreLost, match=r"no connection|broke"):  # the server's last moments may still take it
        client.get(b"never", 60)


def test_nobody_answers():
    """A port where a program takes connections and says nothing costs the time of a handshake, and no more."""
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "_HANDSHAKE_S", 0.3)
        with pytest.raises(StoreLost, match="does not answer"):
            Client("127.0.0.1", listener.getsockname()[1], KEY).get(b"k", 60)


def test_after_a_fork(client):
    """A child makes connections of its own; those of its parent go on undisturbed."""
    client.ask(b"set", b"k", b"parent")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of newer Pythons, about threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = int(client.get(b"k") != b"parent" or client.ask(b"set", b"k", b"child") != [])
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert client.get(b"k") == b"child"


@pytest.mark.slow
@pytest.mark.parametrize("try_s", [0.2, 60.0])
def test_a_connection_that_is_given_up(monkeypatch, try_s):
    """Nobody takes it, as on a lost host: between two tries it may be given up; the control: within one it may not."""
    monkeypatch.setattr(client_module, "_TRY_S", try_s)
    monkeypatch.setattr(client_module, "_HANDSHAKE_S", 4.0)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):  # more than it keeps for a program that takes none
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        client, began = Client(*listener.getsockname(), KEY), time.monotonic()
        with pytest.raises(StoreLost, match="it is lost"):
            client.ask(b"count", cut_off=lambda: "it is lost")
        assert (time.monotonic() - began < 3.5) == (try_s < 1)
