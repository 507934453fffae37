"""A growing file is read line by line, each whole line once, and from its beginning where it was cut."""

import pathlib

from unisono.observe.tail import Tail


def test_whole_lines_once(tmp_path):
    """What has no newline yet waits; a file that is not there has no lines."""
    file = tmp_path / "ledger.jsonl"
    tail = Tail(file)
    assert tail.poll() == (False, [])
    file.write_bytes(b"one\ntwo\nthr")
    assert tail.poll() == (True, [b"one", b"two"])
    assert tail.poll() == (False, [])
    with file.open("ab") as out:
        out.write(b"ee\n")
    assert tail.poll() == (False, [b"three"])


def test_cut_and_written_on(tmp_path):
    """A resume cuts lines and writes others, perhaps as many bytes: all lines come again; so where it is replaced."""
    file = tmp_path / "ledger.jsonl"
    file.write_bytes(b"one\ntwo\nthree\n")
    tail = Tail(file)
    assert tail.poll() == (True, [b"one", b"two", b"three"])
    file.write_bytes(b"one\ntwo\nTHREE\nfour\n")  # the same inode
    assert tail.poll() == (True, [b"one", b"two", b"THREE", b"four"])
    other = tmp_path / "other"
    other.write_bytes(b"one\ntwo\nTHREE\nfour\nfive\n")
    pathlib.Path(other).replace(file)
    assert tail.poll()[0]
    file.unlink()
    assert tail.poll() == (True, [])
    assert tail.poll() == (False, [])
