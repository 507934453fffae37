"""Keys and values, and their bounds: what does not fit changes nothing."""

import random

import pytest
from torch.distributed import HashStore

from unisono.store.questions import Answer, Wait, answer, wait_over
from unisono.store.table import Bounds, Full, KeyTable


def test_as_torchs_stores():
    """A thousand random calls give what torch's HashStore gives."""
    ours, theirs, dice = KeyTable(), HashStore(), random.Random(0)
    for _ in range(1000):
        key = dice.choice("abc")
        name = key.encode()
        match dice.randrange(6):
            case 0:
                value = str(dice.randrange(5))
                ours.set(name, value.encode())
                theirs.set(key, value)
            case 1:
                assert ours.add(name, 2) == theirs.add(key, 2)
            case 2:
                expected, desired = dice.choice(["", "1", "2"]), str(dice.randrange(3))
                found = theirs.compare_set(key, expected, desired)
                assert ours.compare_set(name, expected.encode(), desired.encode()) == found
            case 3:
                assert ours.delete(name) == theirs.delete_key(key)
            case 4:
                assert ours.has([name]) == theirs.check([key])
            case 5:
                assert len(ours) == theirs.num_keys()
        if ours.has([name]):
            assert ours.get(name) == theirs.get(key)


def test_bounds():
    """A key, a value, their number and their sum have bounds; what does not fit leaves everything as it was."""
    table = KeyTable(Bounds(key_bytes=4, value_bytes=8, keys=2, total_bytes=14))
    table.set(b"a", b"12345678")
    for key, value in ((b"12345", b""), (b"b", b"123456789"), (b"bb", b"12345")):
        with pytest.raises(Full):
            table.set(key, value)
        assert len(table) == 1
    with pytest.raises(Full):
        table.append(b"a", b"9")
    table.set(b"b", b"")
    with pytest.raises(Full, match="at most 2 keys"):
        table.set(b"c", b"")
    assert table.drop(b"") == 2
    table.set(b"bb", b"12345678")  # the room is there again
    for value in (b"x", b"9" * 30, b"\xff"):
        wrong = KeyTable()
        wrong.set(b"n", value)
        with pytest.raises(Full):
            wrong.add(b"n", 1)
    with pytest.raises(Full, match="64 bits"):
        KeyTable().add(b"n", 1 << 63)


def test_questions():
    """Questions get their answers; those that wait are told apart from those that are answered."""
    table = KeyTable()
    assert answer(table, [b"set", b"a", b"1", b"b", b"2"]) == Answer([b"ok"], [b"a", b"b"])
    assert answer(table, [b"get", b"0", b"a", b"b"]) == Answer([b"ok", b"1", b"2"])
    assert answer(table, [b"get", b"0", b"c"]) == Answer([b"late"])
    waits = answer(table, [b"wait", b"1500", b"c"])
    assert waits == Wait([b"c"], 1.5, False)
    assert wait_over(table, waits) == Answer([b"late"])
    table.set(b"c", b"3")
    assert wait_over(table, waits) == Answer([b"ok"])
    assert answer(table, [b"add", b"n", b"5"]) == Answer([b"ok", b"5"], [b"n"])
    assert answer(table, [b"compare", b"x", b"old", b"new"]) == Answer([b"ok", b"old"], ())
    assert answer(table, [b"append", b"a", b"1"]) == Answer([b"ok"], [b"a"])
    assert answer(table, [b"delete", b"a"]) == Answer([b"ok", b"1"])
    assert answer(table, [b"check", b"a"]) == Answer([b"ok", b"0"])
    assert answer(table, [b"drop", b"b"]) == Answer([b"ok", b"1"])
    assert answer(table, [b"count"]) == Answer([b"ok", b"2"])


@pytest.mark.parametrize(
    "question",
    [[b"eval", b"1"], [b"set"], [b"set", b"a", b"b", b"c"], [b"get", b"soon", b"a"], [b"add", b"n", b"one"], [b""],
     [b"count", b"x"], [b"set", b"k" * 5000, b""]],
)  # fmt: skip
def test_questions_that_are_none(question):
    """They are answered with a reason, and change nothing."""
    table = KeyTable()
    found = answer(table, question)
    assert found.fields[0] == b"no"
    assert not len(table)


def test_more_values_than_fit_one_answer():
    """The answer is a reason, not a frame that nobody takes."""
    table = KeyTable()
    for key in (b"a", b"b"):
        table.set(key, bytes(4 << 20))
    assert answer(table, [b"get", b"0", b"a", b"b"]).fields[0] == b"no"
