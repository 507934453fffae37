"""Samples of many files, by number: decoded, told apart, refused where they are damaged."""

import json
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

from shard_files import lines_bytes, write_numbered_tars
from unisono.data.loader import Fetcher, Task, fetch_all
from unisono.data.sources import shards as room
from unisono.data.sources.shards import Shards
from unisono.errors import ConfigError, DataError


@pytest.fixture
def tars(numbered_tars, tmp_path):
    return Shards(numbered_tars, window=2, cache=tmp_path / "cache")


def test_samples_by_number(tars):
    """Through all files, from both ends, as a list would."""
    assert len(tars) == 15
    assert [tars[number]["cls"] for number in range(15)] == list(range(15))
    assert tars[4] == {"__key__": "in/0004", "cls": 4, "txt": "né 4"}
    assert tars[-1]["cls"] == 14
    for number in (15, -16):
        with pytest.raises(IndexError):
            tars[number]


def test_own_decoding(numbered_tars, tmp_path):
    """It gets bytes; what it raises stays, with the place."""

    def decode(record):
        if record["cls"] == b"5":
            raise KeyError("no five")
        return int(record["cls"])

    data = Shards(numbered_tars, decode=decode, cache=tmp_path / "cache")
    assert [data[0], data[14]] == [0, 14]
    with pytest.raises(KeyError) as caught:
        data[5]
    assert "part-01.tar, sample 1 at byte" in "".join(caught.value.__notes__)


def test_json_lines(tmp_path):
    """Each line a sample; a broken one is named when it is read."""
    for shard in range(2):
        (tmp_path / f"{shard}.jsonl").write_bytes(lines_bytes([{"n": 10 * shard + row} for row in range(3)]))
    (tmp_path / "1.jsonl").write_bytes(b'{"n": 10}\n{"n": \n{"n": 12}\n')
    data = Shards(tmp_path / "*.jsonl", cache=tmp_path / "cache")
    assert [data[number]["n"] for number in (0, 1, 2, 3, 5)] == [0, 1, 2, 10, 12]
    with pytest.raises(DataError, match=r"1\.jsonl, sample 1 at byte 10: expected a sample, found: Expecting value"):
        data[4]
    raw = Shards(tmp_path / "*.jsonl", decode=bytes.decode, cache=tmp_path / "cache")
    assert raw[0] == '{"n": 0}'


def test_the_score_tells_every_shard(numbered_tars, tmp_path, tars):
    """Size and hash by name, wherever the folder lies; an edited shard is named by the difference."""
    told = tars.fingerprint
    assert told["kind"] == "tar"
    assert list(told["shards"]) == ["part-00.tar", "part-01.tar", "part-02.tar"]
    moved = numbered_tars.rename(tmp_path / "elsewhere")
    assert Shards(moved, cache=tmp_path / "other").fingerprint == told
    (moved / "part-01.tar").write_bytes((moved / "part-00.tar").read_bytes())
    again = Shards(moved, cache=tmp_path / "cache").fingerprint
    assert [name for name, one in again["shards"].items() if one != told["shards"][name]] == ["part-01.tar"]
    assert json.loads(json.dumps(told)) == told


def test_no_more_files_are_open_than_two_windows_have(tmp_path):
    """In each thread and process its own; a pickled copy opens its own."""
    folder = write_numbered_tars(tmp_path / "tars", [1] * 12)
    data = Shards(folder, window=2, cache=tmp_path / "cache")

    def open_shards():
        own = [one for one in Path("/proc/self/fd").iterdir() if one.exists()]
        return sum(one.readlink().parent == folder for one in own)  # other tests may have left some of theirs

    for number in range(12):
        data[number]
        assert open_shards() == min(4, number + 1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append((data[3]["cls"], open_shards())))
    thread.start()
    thread.join()
    assert seen == [(3, 5)]
    assert pickle.loads(pickle.dumps(data))[11]["cls"] == 11
    assert open_shards() == 4


def test_loader_processes_read_the_same(tars):
    """What is open in the rank is not theirs."""
    tars[0]
    tasks = [Task(0, np.array([number, 14 - number])) for number in range(6)]
    fetcher = Fetcher(tars, 0, transform=lambda sample: sample["cls"])
    expected = [batch.tolist() for batch in fetch_all(fetcher, tasks)]
    assert [batch.tolist() for batch in fetch_all(fetcher, tasks, num_workers=2)] == expected
    assert expected == [[number, 14 - number] for number in range(6)]


def test_a_shard_that_becomes_shorter_is_named(tars, numbered_tars):
    """The index knows what must be there."""
    tars[12]
    os.truncate(numbered_tars / "part-02.tar", 4096)
    with pytest.raises(DataError, match=r"part-02\.tar, sample 3 at byte .*expected 2,048 bytes, found 0"):
        tars[12]


def test_settings_are_checked(numbered_tars, tmp_path):
    """Before anything is read."""
    with pytest.raises(ConfigError, match="expected columns= for Parquet files only"):
        Shards(numbered_tars, columns=["a"], cache=tmp_path)
    with pytest.raises(ConfigError, match="expected window as a whole number"):
        Shards(numbered_tars, window=0, cache=tmp_path)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, match="expected at least one sample, found none in 1 shards"):
        Shards(tmp_path / "empty.jsonl", cache=tmp_path)


def test_the_cache_is_the_machines_by_default(numbered_tars, tmp_path, monkeypatch):
    """As everything that is kept between runs."""
    monkeypatch.setattr(room, "default_cache", lambda: tmp_path / "home")
    Shards(numbered_tars)
    assert len(list((tmp_path / "home" / "shards").glob("[0-9a-f]*"))) == 3
