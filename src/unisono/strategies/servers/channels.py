"""Lines between one server and its workers, over which either may talk at any time (sockets; no pickle).

A worker asks and waits for the answer; the server takes questions as they come and answers when it likes. A worker
whose line breaks is dropped; a server whose line breaks ends its workers' run. Both sides prove that they know a key,
which travels over the run's transport.
"""

import json
import os
import secrets
import socket
import struct
import warnings
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import NamedTuple, final

import torch
from torch import Tensor

from unisono.collectives.transport import Transport
from unisono.errors import PeerLost
from unisono.strategies.parts.tensor_bytes import from_bytes, to_bytes

_HEAD = struct.Struct("<BQQdQ")


class Message(NamedTuple):
    """What goes over a line."""

    kind: int  #: What is asked or answered.
    step: int  #: The step that it is about.
    flags: int  #: Bits that say more.
    loss: float  #: Of a worker's samples.
    body: Tensor  #: Any bytes.


def encode(kind: int, step: int = 0, flags: int = 0, loss: float = 0.0, body: Tensor | None = None) -> bytes:
    """Return a message as bytes; see `Message`."""
    data = b"" if body is None else body.numpy().tobytes()
    return _HEAD.pack(kind, step, flags, loss, len(data)) + data


def decode(data: bytes) -> Message:
    """Return what `encode` was given."""
    kind, step, flags, loss, length = _HEAD.unpack_from(data)
    body = torch.frombuffer(bytearray(data[_HEAD.size :]), dtype=torch.uint8) if length else torch.empty(0).byte()
    return Message(kind, step, flags, loss, body)


def _prompt(line: Connection) -> Connection:
    """Let small writes go at once: a message is two of them, and would wait 40 ms for an acknowledgement."""
    with socket.socket(fileno=os.dup(line.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


@final
class ServerLines:
    """The server's ends.

    Attributes:
        lines: By rank; those of workers that are alive.
        dropped: Ranks of workers whose line broke.
        bytes_sent: To all workers.
    """

    def __init__(self, transport: Transport, timeout_s: float) -> None:
        key = secrets.token_bytes(32)
        hosts = {name for name, *_ in transport.all_gather_json([socket.gethostname()])}
        address = "127.0.0.1" if len(hosts) == 1 else socket.gethostbyname(socket.gethostname())
        listener = Listener((address, 0), backlog=transport.world_size, authkey=key)
        try:
            transport.all_gather_json([*listener.address, key.hex()])
            self.lines: dict[int, Connection] = {}
            while len(self.lines) < transport.world_size - 1:
                line = _prompt(listener.accept())
                self.lines[int.from_bytes(line.recv_bytes(8), "little")] = line
        finally:
            listener.close()
        self.dropped: list[int] = []
        self.bytes_sent = 0
        self._timeout_s = timeout_s

    def take(self) -> list[tuple[int, bytes]]:
        """Wait for questions and return them with the workers' ranks, in rank order; broken lines are dropped."""
        if not self.lines:
            raise PeerLost(f"all workers have died: {self.dropped}. Look for the first failure in their logs.")
        ready = wait(list(self.lines.values()), self._timeout_s)
        if not ready:
            raise PeerLost(f"none of the workers {sorted(self.lines)} has sent anything for {self._timeout_s:g} s.")
        found = []
        for rank, line in sorted(self.lines.items()):
            if line in ready:
                try:
                    found.append((rank, line.recv_bytes()))
                except (EOFError, OSError):
                    self.drop(rank)
        return found

    def answer(self, rank: int, message: bytes) -> None:
        """Answer a worker's question; a worker that is gone is dropped."""
        try:
            self.lines[rank].send_bytes(message)
            self.bytes_sent += len(message)
        except (BrokenPipeError, ConnectionError):
            self.drop(rank)

    def drop(self, rank: int) -> None:
        """Go on without a worker."""
        self.lines.pop(rank).close()
        self.dropped.append(rank)
        warnings.warn(
            f"rank {rank} has died; the parameter server goes on with {len(self.lines)} workers, without the samples "
            "of that one.",
            stacklevel=2,
        )

    def close(self) -> None:
        """Hang up."""
        for line in self.lines.values():
            line.close()
        self.lines = {}


@final
class WorkerLine:
    """A worker's end."""

    def __init__(self, transport: Transport, timeout_s: float) -> None:
        transport.all_gather_json([socket.gethostname()])
        address, port, key = transport.all_gather_json([])[0]
        self._who = f"[rank {transport.rank}/{transport.world_size}]"
        self._line = _prompt(Client((address, port), authkey=bytes.fromhex(key)))
        self._line.send_bytes(transport.rank.to_bytes(8, "little"))
        self._timeout_s = timeout_s
        self.bytes_sent = 0

    def ask(self, message: bytes) -> bytes:
        """Send a question and return the answer."""
        try:
            self._line.send_bytes(message)
            self.bytes_sent += len(message)
            if self._line.poll(self._timeout_s):
                return self._line.recv_bytes()
        except (EOFError, ConnectionError) as error:
            raise PeerLost(
                f"{self._who} the parameter server (rank 0) has died. Look for its failure in its log; "
                "the run can be resumed from its last checkpoint."
            ) from error
        raise PeerLost(f"{self._who} the parameter server (rank 0) has not answered for {self._timeout_s:g} s.")

    def close(self) -> None:
        """Hang up."""
        self._line.close()


@final
class StarTransport(Transport):
    """A transport between the server and the workers that are still alive; every parcel goes through the server."""

    def __init__(self, lines: "ServerLines | WorkerLine", live: list[int], rank: int) -> None:
        self._lines, self._live = lines, live
        self.rank, self.world_size = live.index(rank), len(live)
        self.bytes_sent = 0

    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> None:
        head = json.dumps(send_splits).encode()
        parcels = self._exchange(len(head).to_bytes(8, "little") + head + to_bytes([send]).numpy().tobytes())
        for parcel, target in zip(parcels, recv.split(recv_splits), strict=True):
            length = int.from_bytes(parcel[:8], "little")
            splits = [count * recv.element_size() for count in json.loads(parcel[8 : 8 + length])]
            start = 8 + length + sum(splits[: self.rank])
            part = parcel[start : start + splits[self.rank]]
            if part:
                from_bytes(torch.frombuffer(bytearray(part), dtype=torch.uint8), [target])

    def all_gather(self, send: Tensor, recv: Tensor) -> None:
        parcels = self._exchange(to_bytes([send]).numpy().tobytes())
        for parcel, target in zip(parcels, recv.split(len(send)), strict=True):
            from_bytes(torch.frombuffer(bytearray(parcel), dtype=torch.uint8), [target])

    def _exchange(self, mine: bytes) -> list[bytes]:
        if isinstance(self._lines, WorkerLine):
            return _unpack(self._lines.ask(mine))
        parcels = {self._live[0]: mine}
        while len(parcels) < len(self._live):
            parcels |= dict(self._lines.take())
            missing = [rank for rank in self._live[1:] if rank in self._lines.dropped]
            if missing:
                raise PeerLost(f"rank {missing[0]} died during an exchange of all ranks.")
        ordered = [parcels[rank] for rank in self._live]
        answer = b"".join(len(parcel).to_bytes(8, "little") + parcel for parcel in ordered)
        for rank in self._live[1:]:
            self._lines.answer(rank, answer)
        return ordered


def _unpack(data: bytes) -> list[bytes]:
    found, start = [], 0
    while start < len(data):
        length = int.from_bytes(data[start : start + 8], "little")
        found.append(data[start + 8 : start + 8 + length])
        start += 8 + length
    return found
