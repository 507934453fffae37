"""Certificates: which verdict a row has, and that damage and other machines are found."""

import json

import pytest

from unisono.errors import ConfigError
from unisono.experiments.certify.certificate import (
    CERTIFIED,
    FAILED,
    NOT_RUN,
    TOLD,
    Row,
    all_equal,
    check_machine,
    conclusion,
    content_hash,
    count,
    read,
    seal,
)
from unisono.experiments.certify.page import HTML, JSON, prepare, sections, write

ABOUT = {"written": "2026-11-23 06:00 UTC", "device": "cpu", "quick": True, "unisono": "0"}
FACTS = {"torch": "2.13.0", "machine": "x86_64", "cpu": "some <CPU>", "flags": {"torch.set_flag": [1, 2]}}
ROWS = [
    Row(name="good", claim="It holds.", held=True, found=("a: 1",), control="broken", noticed=True, seconds=1.5),
    Row(name="skipped", claim="Nobody knows.", why_not="there is no GPU"),
    Row(name="time", claim="A step.", found=("1 ms",)),
]  # fmt: skip


def same(before, after):
    return [name for name in before if before[name] != after.get(name)]


@pytest.mark.parametrize(
    ("held", "noticed", "why_not", "verdict"),
    [
        (True, True, "", CERTIFIED), (True, False, "", FAILED), (True, None, "", FAILED), (False, True, "", FAILED),
        (False, None, "", FAILED), (None, None, "", TOLD), (None, None, "no GPU", NOT_RUN), (True, True, "?", NOT_RUN),
    ],
)  # fmt: skip
def test_a_row_is_certified_only_with_its_control(held, noticed, why_not, verdict):
    """Never without one, never where the control was not noticed, never where it could not run."""
    assert Row(name="n", claim="c", held=held, noticed=noticed, why_not=why_not).verdict == verdict


def test_a_whole_certificate_is_read():
    """As it was sealed; and its machine is this one."""
    made = seal(FACTS, ROWS, **ABOUT)
    found = read(json.dumps(made, indent=1).encode(), "c.json")
    assert found == made
    assert count(found) == {CERTIFIED: 1, FAILED: 0, NOT_RUN: 1, TOLD: 1}
    assert conclusion(found) == "1 certified, 1 could not run, 1 measured."
    check_machine(found, FACTS, "c.json", same)


def test_every_change_is_found():
    """Of a verdict, a fact, a date, the hash; a cut; another kind and version; a part that is missing."""
    text = json.dumps(seal(FACTS, ROWS, **ABOUT))
    changes = {"there is no GPU": "", "2.13.0": "2.13.1", "06:00": "07:00", '"held": true': '"held": 1'}
    for old, new in changes.items():
        assert old in text
        with pytest.raises(ConfigError, match="is damaged"):
            read(text.replace(old, new).encode(), "c.json")
    for damaged in (text[:-9], "", "\x00", "[" * 100_000):
        with pytest.raises(ConfigError, match="no certificate, or a damaged one"):
            read(damaged.encode(), "c.json")
    for other in ("[]", "{}", '{"kind": "report"}'):
        with pytest.raises(ConfigError, match="no certificate: expected"):
            read(other.encode(), "c.json")
    with pytest.raises(ConfigError, match="of version 1, got 7"):
        read(text.replace('"version": 1', '"version": 7').encode(), "c.json")
    sealed = json.loads(text)
    green = [{**sealed["rows"][1], "verdict": CERTIFIED}]
    for wrong in ({"rows": 5}, {"rows": {}}, {"rows": [{}]}, {"rows": ["good"]}, {"rows": green}, {"facts": []}):
        made = {**sealed, **wrong}
        with pytest.raises(ConfigError, match="expected facts by name, and rows with the verdicts that follow"):
            read(json.dumps({**made, "sha256": content_hash(made)}).encode(), "c.json")
    part = {name: value for name, value in json.loads(text).items() if name not in ("facts", "sha256")}
    with pytest.raises(ConfigError, match="is damaged"):
        read(json.dumps({**part, "sha256": content_hash(part)}).encode(), "c.json")


def test_another_machine_is_refused():
    """By name of what differs."""
    with pytest.raises(ConfigError, match=r"c\.json is not of this machine as it is now: torch"):
        check_machine(seal(FACTS, ROWS, **ABOUT), FACTS | {"torch": "2.12.0"}, "c.json", same)


def test_equal_is_of_two_at_least():
    """One fingerprint proves nothing."""
    assert all_equal({"1": "a", "2": "a"})
    assert not all_equal({"1": "a"})
    assert not all_equal({})
    assert not all_equal({"1": "a", "2": "b"})


def test_the_page_says_each_verdict(tmp_path):
    """Green only where all is certified; what could not run is neither green nor red; names are escaped."""
    made = seal(FACTS, ROWS, **ABOUT)
    prepare(tmp_path / "new")
    write(made, tmp_path / "new")
    assert read((tmp_path / "new" / JSON).read_bytes(), JSON) == made
    page = (tmp_path / "new" / HTML).read_text()
    assert "some &lt;CPU&gt;" in page
    assert made["sha256"] in page
    overall, *checks = [[remark.tone for remark in part.findings] for part in sections(made)]
    assert overall == [""]
    assert checks == [["good"], [""], [""], []]
    assert sections(seal(FACTS, ROWS[:1], **ABOUT))[0].findings[0].tone == "good"
    wrong = Row(name="bad", claim="c", held=True, control="broken", noticed=False)
    assert [part.findings[0].tone for part in sections(seal(FACTS, [ROWS[0], wrong], **ABOUT))[:3]] == [
        "alarm", "good", "alarm",
    ]  # fmt: skip
    prepare(tmp_path / "new")  # a certificate of ours is replaced
    (tmp_path / "new" / JSON).write_text("somebody's")
    with pytest.raises(ConfigError, match="none of ours"):
        prepare(tmp_path / "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="expected a directory"):
        prepare(tmp_path / "file")
