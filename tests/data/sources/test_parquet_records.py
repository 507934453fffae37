"""Parquet files by rows; row groups are what is shuffled and kept."""

import numpy as np
import pytest

from unisono.data.loader import Fetcher, Task, fetch_all
from unisono.data.sources import shards as room
from unisono.data.sources.parquet_records import scan_parquet
from unisono.data.sources.shards import Shards
from unisono.errors import DataError

arrow = pytest.importorskip("pyarrow", reason="needs the extra shards")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra shards")


@pytest.fixture
def folder(tmp_path):
    """Two files of 10 and 7 rows in groups of 4."""
    done = 0
    for shard, count in enumerate([10, 7]):
        numbers = range(done, done + count)
        table = arrow.table({
            "n": list(numbers), "text": [f"né {n}" for n in numbers], "tokens": [[n] * (n % 3) for n in numbers],
            "words": [["a", str(n)] for n in numbers], "deep": [{"x": n} for n in numbers],
        })  # fmt: skip
        parquet.write_table(table, tmp_path / f"{shard}.parquet", row_group_size=4)
        done += count
    return tmp_path


def test_rows(folder):
    """As dictionaries; lists of numbers are arrays; groups are counted as shards."""
    data = Shards(folder)
    assert (len(data), data.plan.counts) == (17, [4, 4, 2, 4, 3])
    row = data[11]
    assert row.pop("tokens").tolist() == [11, 11]
    assert row == {"n": 11, "text": "né 11", "words": ["a", "11"], "deep": {"x": 11}}
    assert [data[number]["n"] for number in range(17)] == list(range(17))
    few = Shards(folder, columns=["n"], decode=lambda row: row["n"] * 2)
    assert few[16] == 32
    assert few.fingerprint["columns"] == ["n"]


def test_groups_of_a_window_are_read_once(folder, monkeypatch):
    """In an epoch's order each row group is unpacked once, however its rows are mixed."""
    opened = []
    read = room.open_parquet
    monkeypatch.setattr(room, "open_parquet", lambda path: opened.append(path) or read(path))
    data = Shards(folder, window=2)
    order = data.plan.order(data, seed=0, shuffle=True).at(0, 0, 17).tolist()
    assert [data[number]["n"] for number in order] == order != sorted(order)
    assert len(opened) == 5


def test_loader_processes(folder):
    """Forked after the rank has read: each opens its own."""
    data = Shards(folder, columns=["n"])
    data[0]
    tasks = [Task(0, np.array([number, 16 - number])) for number in range(6)]
    fetcher = Fetcher(data, 0, transform=lambda row: row["n"])
    assert [batch.tolist() for batch in fetch_all(fetcher, tasks, num_workers=2)] == [
        [number, 16 - number] for number in range(6)
    ]


def test_what_is_refused(folder):
    """A column that is not there, a file that is cut short, a file that is none."""
    path = folder / "0.parquet"
    with pytest.raises(DataError, match=r"0\.parquet: expected a column 'm', found 'n', 'text'"):
        scan_parquet(path, ["m"])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"expected a whole Parquet file, found: .*[^.]\. Hint: fetch or write"):
        Shards(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="expected a whole Parquet file"):
        Shards(path)
