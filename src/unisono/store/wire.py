"""What passes between client and server of the store, as bytes (pure but for random numbers).

Both prove that they know the key before either reads a byte of content: each answers the other's random challenge by an
HMAC under a label of its own direction. From both challenges come two keys of this connection, one for each way; every
frame carries an HMAC over its number and content, so that frames can be neither changed, repeated, left out nor moved
to another connection. Nothing is encrypted: who can read the network reads the values.

    server: MAGIC challenge        client: MAGIC challenge proof        server: proof        then frames, client first

A frame: length of the body (4 bytes), body, HMAC-SHA256 (32 bytes). A body: fields, each with its length.
"""

import hmac
import os
import struct
from collections.abc import Sequence
from typing import final

from unisono.errors import UnisonoError

MAGIC = b"UNISONO1"
NONCE_BYTES = 32
MAC_BYTES = 32
HELLO_BYTES = len(MAGIC) + NONCE_BYTES
ANSWER_BYTES = HELLO_BYTES + MAC_BYTES
HEAD_BYTES = 4
MOST_BODY_BYTES = 8 << 20
MOST_FIELDS = 10_001


class Damaged(UnisonoError):
    """Bytes that no peer with our key has sent."""


@final
class Handshake:
    """The challenges of one connection, and what follows from them."""

    def __init__(self, key: bytes, of_server: bytes, of_client: bytes) -> None:
        for hello in (of_server, of_client):
            if len(hello) != HELLO_BYTES or not hello.startswith(MAGIC):
                raise Damaged("no greeting of this store")
        self._key, self._both = key, of_server + of_client

    def client_proof(self) -> bytes:
        """Return what shows the server that the client knows the key."""
        return self._mac(b"proof of the client")

    def server_proof(self) -> bytes:
        """Return what shows the client that the server knows the key."""
        return self._mac(b"proof of the server")

    def channels(self) -> tuple["Channel", "Channel"]:
        """Return the ways from client to server and back."""
        return Channel(self._mac(b"client to server")), Channel(self._mac(b"server to client"))

    def _mac(self, label: bytes) -> bytes:
        return hmac.digest(self._key, label + b"\0" + self._both, "sha256")


def hello() -> bytes:
    """Return a greeting with a new challenge."""
    return MAGIC + os.urandom(NONCE_BYTES)


def is_same(proof: bytes, expected: bytes) -> bool:
    """Whether two proofs are equal, found out in a time that does not tell how much of them is."""
    return hmac.compare_digest(proof, expected)


@final
class Channel:
    """One way of a connection: both ends count its frames."""

    def __init__(self, key: bytes) -> None:
        self._key, self._count = key, 0

    def seal(self, body: bytes) -> bytes:
        """Return the next frame with `body`."""
        if len(body) > MOST_BODY_BYTES:
            raise ValueError(f"expected at most {MOST_BODY_BYTES} bytes in a frame, got {len(body)}.")
        return struct.pack("!I", len(body)) + body + self._mac(body)

    def open(self, body: bytes, mac: bytes) -> bytes:
        """Return the body of the next frame once it is known to come from the peer."""
        if not is_same(mac, self._mac(body)):
            raise Damaged("a frame that the peer has not sent, or not here")
        return body

    def _mac(self, body: bytes) -> bytes:
        self._count += 1
        return hmac.digest(self._key, struct.pack("!Q", self._count) + body, "sha256")


def body_bytes(head: bytes) -> int:
    """Return the length of the body that a frame's head announces."""
    (length,) = struct.unpack("!I", head)
    if length > MOST_BODY_BYTES:
        raise Damaged(f"a frame of {length} bytes")
    return int(length)


def pack(fields: Sequence[bytes]) -> bytes:
    """Return fields as one body."""
    return b"".join(struct.pack("!I", len(field)) + field for field in fields)


def unpack(body: bytes) -> list[bytes]:
    """Return the fields of a body."""
    fields: list[bytes] = []
    start = 0
    while start < len(body):
        end = start + HEAD_BYTES
        if end <= len(body):
            end += int.from_bytes(body[start:end])
        if end > len(body) or len(fields) == MOST_FIELDS:
            raise Damaged("fields that do not fit their frame")
        fields.append(body[start + HEAD_BYTES : end])
        start = end
    if not fields:
        raise Damaged("an empty frame")
    return fields
