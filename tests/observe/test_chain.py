"""The chain: every change of a past line is found where it stands, and equal histories have equal heads."""

import json

from unisono.observe.chain import PREVIOUS, START, first_break, head, parse_all, value_after


def chained(steps, after=()):
    """Return lines of `steps` that go on after `after`."""
    lines = list(after)
    for step in steps:
        carried = head(parse_all(b"\n".join(lines)))
        lines.append(json.dumps({"step": step, "loss": "0x1.8p+0", PREVIOUS: carried}).encode())
    return lines


def broken(lines, heads=None):
    """Return the number of the first line that is another one."""
    found = first_break(parse_all(b"\n".join(lines)), heads or {})
    return None if found is None else found[0]


def test_a_line_carries_the_value_before_it():
    """The first line carries the start, each other one the hash of the value before its predecessor and that line."""
    lines = chained([1, 2, 3])
    carried = [json.loads(line)[PREVIOUS] for line in lines]
    assert carried == [START, value_after(carried[0], lines[0]), value_after(carried[1], lines[1])]
    assert head(parse_all(b"\n".join(lines))) == value_after(carried[2], lines[2])
    assert broken(lines, {3: value_after(carried[2], lines[2])}) is None


def test_every_changed_byte_is_found_at_its_line():
    """Whichever digit of a past line is another one, that line is named, or the one after it that no longer fits."""
    lines = chained([1, 2, 3, 4])
    heads = {4: head(parse_all(b"\n".join(lines)))}
    seen = 0
    for number, line in enumerate(lines, start=1):
        for place, byte in enumerate(line):
            if chr(byte) not in "0123456789abcdef":
                continue
            other = line[:place] + (b"1" if byte != ord("1") else b"2") + line[place + 1 :]
            changed = [*lines[: number - 1], other, *lines[number:]]
            entry = parse_all(other)[0][1]
            if entry is None or entry["step"] != number:
                continue  # no line of ours any more, or a gap: everybody sees that
            seen += 1
            in_chain = place >= line.index(PREVIOUS.encode()) and number > 1
            assert broken(changed, heads) in ({number, number - 1} if in_chain else {number})
    assert seen > 100
    assert broken(lines, heads) is None


def test_the_last_line_is_held_by_the_checkpoint():
    """No line vouches for the last one: the head that a checkpoint holds does; the control has none."""
    lines = chained([1, 2, 3])
    good = head(parse_all(b"\n".join(lines)))
    lines[2] = lines[2].replace(b"1.8p", b"1.9p")
    assert broken(lines, {3: good}) == 3
    assert broken(lines) is None
    rewritten = chained([3], after=chained([2], after=[chained([1])[0].replace(b"1.8p", b"1.9p")]))
    assert broken(rewritten, {3: good}) == 3  # the whole chain made anew
    assert broken(rewritten) is None


def test_a_line_without_the_chain_after_one_with_it():
    """What carries nothing where the chain has begun was put there by somebody else."""
    lines = chained([1, 2, 3])
    lines[1] = json.dumps({"step": 2, "loss": "0x1.8p+0"}).encode()
    assert broken(lines) == 2


def test_lines_of_the_first_version():
    """The first line that carries a value vouches for all lines before it, which carry none."""
    old = [json.dumps({"step": step, "loss": "0x1.8p+0"}).encode() for step in (1, 2, 3)]
    lines = chained([4, 5], after=old)
    assert broken(lines) is None
    for place in (0, 1, 2):
        changed = list(lines)
        changed[place] = lines[place].replace(b"1.8p", b"1.9p")
        assert broken(changed) == 3  # the last of them: nobody knows which
    assert broken(old) is None


def test_a_gap_is_another_damage():
    """After missing lines the next one is believed: what is gone can be seen, and what is there may be right."""
    lines = chained([1, 2, 3, 4, 5])
    good = head(parse_all(b"\n".join(lines)))
    for left in (lines[2:], lines[:1] + lines[3:], [*lines[:2], b"no entry", *lines[3:]]):
        assert broken(left, {5: good}) is None
        assert head(parse_all(b"\n".join(left))) == good
    assert broken([lines[0], lines[2].replace(b"1.8p", b"1.9p"), *lines[3:]], {5: good}) == 2
