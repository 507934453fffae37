"""Proofs and frames: what is changed, repeated, left out or moved to another connection is found."""

import pytest

from unisono.store.wire import (
    ANSWER_BYTES,
    HEAD_BYTES,
    MAC_BYTES,
    MOST_BODY_BYTES,
    Channel,
    Damaged,
    Handshake,
    body_bytes,
    hello,
    is_same,
    pack,
    unpack,
)

KEY = b"k" * 32


def opened(channel, frame):
    """Open a frame as the other end does."""
    length = body_bytes(frame[:HEAD_BYTES])
    return channel.open(frame[HEAD_BYTES : HEAD_BYTES + length], frame[HEAD_BYTES + length :])


def test_a_handshake():
    """Both sides compute the same proofs and keys; each has a label of its own, so no proof answers for another."""
    server, client = hello(), hello()
    here, there = Handshake(KEY, server, client), Handshake(KEY, server, client)
    assert is_same(here.client_proof(), there.client_proof())
    assert here.client_proof() != here.server_proof()
    assert len(client + here.client_proof()) == ANSWER_BYTES
    pairs = [(hello(), client), (server, hello()), (client, server)]
    for other in (Handshake(b"x" * 32, server, client), *(Handshake(KEY, *pair) for pair in pairs)):
        assert not is_same(other.client_proof(), here.client_proof())
        assert not is_same(other.server_proof(), here.server_proof())
        assert not is_same(other.server_proof(), here.client_proof())
    with pytest.raises(Damaged, match="no greeting"):
        Handshake(KEY, b"SSH-2.0-" + server[8:], client)


def test_frames():
    """Frames arrive in their order, and in no other; none of another connection or direction is taken."""
    hellos = [hello(), hello()]
    (send, back), (receive, _) = (Handshake(KEY, *hellos).channels() for _ in "ab")
    frames = [send.seal(body) for body in (b"one", b"", b"three")]
    assert [opened(receive, frame) for frame in frames] == [b"one", b"", b"three"]
    for wrong in (frames[0], frames[2], back.seal(b"one"), Channel(b"x" * 32).seal(b"one")):
        with pytest.raises(Damaged):
            opened(receive, wrong)


def test_one_bit():
    """Any flipped bit of body or HMAC is found."""
    frame = Channel(KEY).seal(b"gradient")
    for bit in range(8 * HEAD_BYTES, 8 * len(frame)):
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            opened(Channel(KEY), bytes(changed))
    assert opened(Channel(KEY), frame) == b"gradient"


def test_fields():
    """Fields survive; bodies that are cut, empty or of too many fields are refused; so is an endless frame."""
    for fields in ([b""], [b"set", b"\0key", b"v" * 1000]):
        assert unpack(pack(fields)) == fields
    whole = pack([b"set", b"key"])
    for body in (b"", whole[:-1], whole + b"\0", whole + b"\xff\xff\xff\xff", pack([b""] * 10_002)):
        with pytest.raises(Damaged):
            unpack(body)
    assert body_bytes(MOST_BODY_BYTES.to_bytes(4)) == MOST_BODY_BYTES
    with pytest.raises(Damaged):
        body_bytes((MOST_BODY_BYTES + 1).to_bytes(4))
    with pytest.raises(ValueError, match="at most"):
        Channel(KEY).seal(bytes(MOST_BODY_BYTES + 1))
    assert MAC_BYTES == 32
