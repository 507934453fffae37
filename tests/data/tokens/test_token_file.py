"""Files of tokens: samples that are a function of (seed, epoch, number), and files that are not what they should be."""

import itertools
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

import unisono
from unisono.data.files import identity
from unisono.data.loader import Fetcher, Task, check_dataset
from unisono.data.tokens import mapped, pieces
from unisono.data.tokens.samples import IGNORED
from unisono.errors import ConfigError, DataError

END = 999


def write(path, tokens, dtype=np.uint16):
    np.asarray(tokens, dtype).tofile(path)
    return path


@pytest.fixture
def plain(tmp_path):
    """1,000 tokens that say where they stand."""
    return write(tmp_path / "plain.bin", np.arange(1000))


def documents(count=40, seed=0):
    drawn = np.random.default_rng(seed)
    return [drawn.integers(0, 900, size) for size in drawn.integers(1, 70, count)]


def joined(texts):
    return np.concatenate([part for text in texts for part in (text, [END])])


def test_crops_are_the_input_and_what_comes_after(plain):
    """Each crop is consecutive, its target one token later; (seed, epoch, number) alone decide which."""
    data = unisono.TokenFile(plain).crops(16, samples=50)
    indices = np.arange(50)
    x, y = data.fetch_keyed(indices, seed=3, epoch=1)
    assert x.dtype == y.dtype == torch.int64
    assert x.shape == (50, 16)
    assert x.is_contiguous()
    assert y.is_contiguous()
    assert torch.equal(y, x + 1)
    assert torch.equal(x - x[:, :1], torch.arange(16).expand(50, 16))
    turned = data.fetch_keyed(indices[::-1].copy(), seed=3, epoch=1)[0]
    assert torch.equal(turned.flip(0), x)
    for other in ({"seed": 4, "epoch": 1}, {"seed": 3, "epoch": 2}):
        assert not torch.equal(data.fetch_keyed(indices, **other)[0], x)
    assert torch.equal(data.fetch_micro_batch(indices)[0], data.fetch_micro_batch(indices)[0])
    assert len(unisono.TokenFile(plain).crops(16)) == 62


def test_every_place_of_every_file_begins_a_crop(tmp_path):
    """First and last places are drawn, those over the end of a file never, and each about equally often."""
    for name, begin, size in (("a", 0, 12), ("b", 100, 30)):
        write(tmp_path / f"{name}.bin", np.arange(begin, begin + size))
    data = unisono.TokenFile(tmp_path / "*.bin").crops(8, samples=20_000)
    x, y = data.fetch_keyed(np.arange(20_000), seed=0, epoch=0)
    assert torch.equal(y, x + 1)
    found, counts = np.unique(x[:, 0].numpy(), return_counts=True)
    assert found.tolist() == [*range(4), *range(100, 122)]
    assert counts.min() > 650
    assert counts.max() < 900


@pytest.mark.parametrize("more", [{}, {"transform": lambda sample: sample}])
def test_crops_fetched_one_by_one_change_with_the_epoch(plain, more):
    """With a transform of the user's, too, a crop is keyed by (seed, epoch, number), not by what was drawn before."""
    fetcher = Fetcher(unisono.TokenFile(plain).crops(16, samples=50), 5, **more)
    first, again, later = (fetcher[Task(epoch, np.array([7, 8]))].x for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


def test_rows_hold_every_token_once(tmp_path):
    """Each token but the first of a file is a target once; the last row of a file is filled up with ignored targets."""
    write(tmp_path / "a.bin", np.arange(50))
    write(tmp_path / "b.bin", np.arange(100, 133))
    data = unisono.TokenFile([tmp_path / "a.bin", tmp_path / "b.bin"]).rows(16)
    x, y = data.fetch_micro_batch(np.arange(len(data)))
    assert len(data) == 4 + 2
    kept = y != IGNORED
    assert torch.equal(x[kept] + 1, y[kept])
    assert sorted(y[kept].tolist()) == [*range(1, 50), *range(101, 133)]
    assert torch.equal(data.fetch_keyed(np.array([1]), seed=1, epoch=3)[1], y[1:2])
    assert torch.equal(data[2][0], x[2])


@pytest.mark.parametrize("ends_with_end", [True, False])
def test_packed_rows_hold_every_document_once(tmp_path, ends_with_end):
    """In every epoch: each document's tokens follow each other in one segment, begun by the end-of-text token."""
    texts = documents()
    tokens = joined(texts)
    path = write(tmp_path / "a.bin", tokens if ends_with_end else tokens[:-1])
    data = unisono.TokenFile(path).packed(32, end_of_text=END)
    wanted = [[*text.tolist(), END] for text in texts]
    if not ends_with_end:
        wanted[-1].pop()
    together = []
    for epoch in (None, 0, 1):
        rows = np.arange(len(data))
        x, y = data.fetch_micro_batch(rows) if epoch is None else data.fetch_keyed(rows, seed=0, epoch=epoch)
        found, seen = [], []
        for row in range(len(data)):
            for segment in range(int(x.segments[row].max()) + 1):
                where = x.segments[row] == segment
                target, given = y[row][where].tolist(), x.tokens[row][where].tolist()
                if target[0] == IGNORED:
                    assert set(target) == {IGNORED}
                    assert set(given) == {0}
                    continue
                assert x.positions[row][where].tolist() == list(range(len(target)))
                assert given[1:] == target[:-1]
                found.append((given[0], target))
                seen.append(row)
        # Pieces of one document: a whole row each, and the rest.
        starts = sorted(target for head, target in found if head == END)
        assert len(starts) == len(texts)
        expected = sorted(wanted[i][at : at + 32] for i in range(len(texts)) for at in range(0, len(wanted[i]), 32))
        assert sorted(target for _, target in found) == expected
        together.append(x.tokens)
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(together[1], together[2])
    least = -(-sum(map(len, wanted)) // 32)
    assert least <= len(data) <= least * 1.05 + 1


def test_attention_stays_inside_a_document(tmp_path):
    """A place sees itself and what stands before it in its document, and nothing else."""
    data = unisono.TokenFile(write(tmp_path / "a.bin", joined(documents()))).packed(32, end_of_text=END)
    x, _ = data.fetch_micro_batch(np.arange(len(data)))
    mask = x.attention_mask()[:, 0]
    assert mask.shape == (len(data), 32, 32)
    assert not mask.triu(1).any()
    assert mask.diagonal(dim1=1, dim2=2).all()
    seen = mask.sum(2)
    kept = torch.arange(32) - seen + 1 == torch.arange(32) - x.positions
    assert kept[x.segments < x.segments.amax(1, keepdim=True)].all()


def test_empty_documents_and_those_begun_by_the_token(tmp_path):
    """Two ends in a row make no sample; a file that begins each document with the token, as llm.c's do, reads alike."""
    behind = write(tmp_path / "behind.bin", [1, 2, END, END, 3, END])
    before = write(tmp_path / "before.bin", [END, 1, 2, END, 3])
    for path, last in ((behind, [END, 3, END]), (before, [END, 3, None])):
        (x, y), *more = [unisono.TokenFile(path).packed(8, end_of_text=END)[0]]
        assert not more
        assert x.tokens[:3].tolist() == [END, 1, 2]
        assert y[:3].tolist() == [1, 2, END]
        assert x.tokens[3:5].tolist() == last[:2] if last[2] else x.tokens[3].item() == END
    with pytest.raises(DataError, match="found empty ones only"):
        unisono.TokenFile(write(tmp_path / "none.bin", [END, END])).packed(8, end_of_text=END)


def test_the_table_of_a_large_file_is_kept(tmp_path, monkeypatch):
    """It is made once, gives the same rows, and another one is made when the file is another."""
    path = write(tmp_path / "a.bin", joined(documents()))
    plain = unisono.TokenFile(path).packed(32, end_of_text=END)
    monkeypatch.setattr(pieces, "_KEPT_FROM", 1)
    kept = unisono.TokenFile(path, cache=tmp_path / "cache").packed(32, end_of_text=END)
    with monkeypatch.context() as never:
        never.setattr(pieces, "find_documents", None)
        again = unisono.TokenFile(path, cache=tmp_path / "cache").packed(32, end_of_text=END)
        copy = pickle.loads(pickle.dumps(again))
    rows = np.arange(len(plain))
    for data in (kept, again, copy):
        assert torch.equal(data.fetch_micro_batch(rows)[1], plain.fetch_micro_batch(rows)[1])
    held = plain.fetch_micro_batch(rows[:1])[1]
    write(path, joined(documents(seed=1)))
    other = unisono.TokenFile(path, cache=tmp_path / "cache").packed(32, end_of_text=END)
    assert len(list((tmp_path / "cache" / "tokens").glob("rows-*"))) == 2
    assert not torch.equal(other.fetch_micro_batch(rows[:1])[1], held)
    with pytest.raises(DataError, match=r"bytes that it had when it was opened, found 2,\d\d\d\."):
        plain.fetch_micro_batch(rows[:1])


def test_kinds_of_files(tmp_path):
    """Raw numbers of each width, NumPy's own format, and llm.c's header give the same samples."""
    tokens = np.arange(200)
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(tokens)
    (tmp_path / "llmc.bin").write_bytes(header.tobytes() + tokens.astype("<u2").tobytes())
    np.save(tmp_path / "a.npy", tokens.astype(np.int32))
    files = {
        "u1": unisono.TokenFile(write(tmp_path / "u1.bin", tokens, np.uint8), dtype="uint8"),
        "u2": unisono.TokenFile(write(tmp_path / "u2.bin", tokens)),
        "u4": unisono.TokenFile(write(tmp_path / "u4.bin", tokens, np.uint32), dtype="uint32"),
        "llmc": unisono.TokenFile(tmp_path / "llmc.bin"),
        "npy": unisono.TokenFile(tmp_path / "a.npy"),
    }
    assert {file.num_tokens for file in files.values()} == {200}
    rows = [file.crops(16, samples=8).fetch_micro_batch(np.arange(8))[1] for file in files.values()]
    assert all(torch.equal(one, rows[0]) for one in rows)
    assert len({file.fingerprint for file in files.values()}) == 5
    with pytest.raises(DataError, match=r"files of one type.*uint16 in .*int32 in"):
        unisono.TokenFile([tmp_path / "u2.bin", tmp_path / "a.npy"])


def bad_files(folder):
    (folder / "empty.bin").touch()
    (folder / "odd.bin").write_bytes(b"123")
    np.save(folder / "square.npy", np.zeros((3, 3), np.uint16))
    np.save(folder / "float.npy", np.zeros(3))
    np.save(folder / "objects.npy", np.array([{}]), allow_pickle=True)
    whole = (folder / "square.npy").read_bytes()
    (folder / "cut.npy").write_bytes(whole[:-7])
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, 7
    (folder / "llmc.bin").write_bytes(header.tobytes() + bytes(6))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing.bin", "expected a file of tokens, found: No such file"),
        ("*.xyz", "expected a pattern that fits a file, found none"),
        (".", "expected a file of tokens, found: Is a directory"),
        ("empty.bin", "found an empty file"),
        ("odd.bin", r"expected whole numbers of 2 bytes \(uint16\), found 3 bytes. Hint: it is cut short"),
        ("square.npy", r"expected one flat array of whole numbers, found uint16 \(3, 3\)"),
        ("float.npy", "found float64"),
        ("objects.npy", "expected an array of NumPy's, found: "),
        ("cut.npy", "expected an array of NumPy's, found: "),
        ("llmc.bin", "expected the 7 tokens that its header tells, found 3"),
    ],
)
def test_files_that_are_none(tmp_path, name, told):
    """What cannot be tokens is refused in one line when it is opened, with the path and what to do."""
    bad_files(tmp_path)
    with pytest.raises(DataError, match=told) as error:
        unisono.TokenFile(tmp_path / name)
    assert str(tmp_path) in str(error.value)
    assert "Hint: " in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_that_are_none(plain, tmp_path):
    """Wrong words and numbers are named; a file is no data set by itself, and it is said what is."""
    with pytest.raises(ConfigError, match="dtype as one of uint8, uint16, uint32, int32, int64, got 'int7'"):
        unisono.TokenFile(plain, dtype="int7")
    for wrong in (np.arange(100), b"a.bin", [3]):
        with pytest.raises(ConfigError, match="expected the path of a file of tokens"):
            unisono.TokenFile(wrong)
    with pytest.raises(ConfigError, match="'blocks' or 'whole'"):
        unisono.TokenFile(plain, fingerprint="all")
    with pytest.raises(ConfigError, match=r"got TokenFile. Hint: tokens.crops\(length\)"):
        check_dataset(unisono.TokenFile(plain))
    with pytest.raises(DataError, match=r"expected more than 1,000 tokens, .*found 1,000"):
        unisono.TokenFile(plain).crops(1000)
    assert len(unisono.TokenFile(plain).crops(999)) == 1
    with pytest.raises(DataError, match=r"expected documents that end with token 5000, found none in 1,000"):
        unisono.TokenFile(plain).packed(8, end_of_text=5000)
    with pytest.raises(DataError, match="at least 2 tokens, found 1"):
        unisono.TokenFile(write(tmp_path / "one.bin", [3])).rows(8)
    with pytest.raises(ConfigError, match="length"):
        unisono.TokenFile(plain).rows(0)


@pytest.mark.parametrize("dtype", ["uint32", "int32", "int64"])
def test_wider_numbers_are_not_read_as_narrow_ones(tmp_path, dtype):
    """A file says nothing of its type: what looks wider than uint16 is refused, and read right by the hint; with
    `dtype=` the user's word counts.
    """
    path = write(tmp_path / "wide.bin", np.arange(300) % 50, dtype)
    hinted = "int64" if dtype == "int64" else "uint32"
    with pytest.raises(DataError, match=f"every second of its first .* Hint: dtype='{hinted}'"):
        unisono.TokenFile(path, vocabulary=50)
    assert torch.equal(unisono.TokenFile(path, dtype=hinted).rows(100)[0][1], torch.arange(1, 101) % 50)
    assert unisono.TokenFile(path, dtype=np.uint16).num_tokens == 300 * np.dtype(dtype).itemsize // 2
    assert unisono.TokenFile(write(tmp_path / "zeros.bin", np.zeros(300))).num_tokens == 300


def test_samples_are_a_sequence(plain):
    """A `for` over crops, rows and packed rows ends; numbers may count from the end, as in a list."""
    tokens = unisono.TokenFile(plain)
    for data in (tokens.crops(300), tokens.rows(300), tokens.packed(300, end_of_text=END)):
        assert len([*data]) == len(data) in (3, 4)
        with pytest.raises(IndexError, match=f"one of {len(data)} samples"):
            data[len(data)]
    assert torch.equal(tokens.rows(300)[-1][0], tokens.rows(300)[3][0])


def test_a_number_outside_the_vocabulary_is_found_where_it_is_read(tmp_path):
    """File, place and byte are named; what is not read is not looked at."""
    tokens = np.zeros(100)
    tokens[57] = 300
    first, second = write(tmp_path / "a.bin", np.zeros(10)), write(tmp_path / "b.bin", tokens)
    data = unisono.TokenFile([first, second], vocabulary=300).rows(4)
    y = data.fetch_micro_batch(np.arange(3))[1]
    assert y.max() == 0
    with pytest.raises(DataError, match=r"b\.bin: expected tokens from 0 to 299, found 300 as token 57 \(byte 114\)"):
        data.fetch_micro_batch(np.arange(len(data)))
    np.save(tmp_path / "c.npy", np.array([0, -1, 0], np.int16))
    with pytest.raises(DataError, match=r"found -1 as token 1 \(byte 130\)"):
        unisono.TokenFile(tmp_path / "c.npy", vocabulary=300).rows(2).fetch_micro_batch(np.arange(1))


SHRINK = """
import os, sys
import numpy as np
from unisono.data.tokens.mapped import Mapped
from unisono.errors import DataError
np.zeros(400_000, np.uint16).tofile(sys.argv[1])
data, starts = Mapped(sys.argv[1]), np.arange(8) * 50_000
data.rows(starts, 64)
os.truncate(sys.argv[1], 10)
try:
    data.rows(starts, 64)
except DataError as error:
    print(error, "torch" in sys.modules)
"""


def test_a_file_that_shrinks_is_an_error_and_no_signal(tmp_path):
    """In a process of its own, since reading the lost pages would end it with SIGBUS; the launcher could read, too."""
    command = [sys.executable, "-c", SHRINK, str(tmp_path / "a.bin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert "a.bin: expected the 800,000 bytes that it had when it was opened, found 10. Hint: " in done.stdout
    assert done.stdout.endswith(" False\n")


def test_pickled_as_paths(plain):
    """A loader process gets the path alone, and refuses a file that is another one by then."""
    tokens = unisono.TokenFile(plain)
    for data in (tokens.crops(16), tokens.rows(16)):
        kept = pickle.dumps(data)
        assert len(kept) < 1000
        copy = pickle.loads(kept)
        assert torch.equal(copy.fetch_micro_batch(np.arange(9))[0], data.fetch_micro_batch(np.arange(9))[0])
        assert copy.fingerprint == data.fingerprint
    assert pickle.loads(pickle.dumps(tokens)).fingerprint == tokens.fingerprint
    os.utime(plain, ns=(1, 1))
    with pytest.raises(DataError, match="expected the file that this run has begun with"):
        pickle.loads(kept)


def test_it_is_opened_read_only(plain):
    """No sample is a window into the file, and the file's pages cannot be written."""
    data = unisono.TokenFile(plain)
    x, _ = data.crops(16).fetch_micro_batch(np.arange(3))
    x.zero_()
    assert plain.read_bytes() == np.arange(1000).astype(np.uint16).tobytes()
    with pytest.raises(ValueError, match="read-only"):
        mapped.Mapped(plain).sequence(0)[:] = 0


def test_fingerprints_of_blocks_and_of_all(tmp_path):
    """An edit inside a block changes both; one between the blocks only the whole one; a copy has the same."""
    size = 4 << 20
    path, cache = tmp_path / "a.bin", tmp_path / "cache"
    path.write_bytes(bytes(size))
    blocks = unisono.TokenFile(path).fingerprint
    whole = unisono.TokenFile(path, fingerprint="whole", cache=cache).fingerprint
    places = identity.places_of(size)
    assert len(places) == identity.NUM_BLOCKS
    assert places[0] == 0
    assert places[-1] == size - identity.BLOCK_BYTES
    gap = next(a + identity.BLOCK_BYTES for a, b in itertools.pairwise(places) if b > a + identity.BLOCK_BYTES)
    for place, is_seen in ((gap, False), (places[5], True)):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        os.utime(path, ns=(place, place))
        assert (unisono.TokenFile(path).fingerprint != blocks) == is_seen
        assert unisono.TokenFile(path, fingerprint="whole", cache=cache).fingerprint != whole
    (tmp_path / "b.bin").write_bytes(path.read_bytes())
    assert unisono.TokenFile(tmp_path / "b.bin").fingerprint == unisono.TokenFile(path).fingerprint


def test_the_whole_hash_is_computed_once(tmp_path, monkeypatch):
    """It is kept by what the file is on this machine; what was kept wrongly is made again."""
    path, cache = tmp_path / "a.bin", tmp_path / "cache"
    path.write_bytes(bytes(2 << 20))
    first = identity.whole_identity(path, cache)
    with monkeypatch.context() as never:
        never.setattr(identity, "sha256_file", None)
        assert identity.whole_identity(path, cache) == first
    (kept,) = (cache / "hashes").iterdir()
    kept.write_text("nonsense")
    assert identity.whole_identity(path, cache) == first
    assert len(kept.read_text()) == 64
