"""Row 24 for a whole run: a disk with too few free pages, at every one of them, and another run's files beside them."""

import errno
import json
import os
import re
import resource
import subprocess
import threading
from pathlib import Path

import job
import pytest
import torch
from evidence import record
from states import state_of
from test_files_damage import RUN, check_fallback, two  # noqa: F401 - a fixture

from unisono.checkpoint.files import FileSum
from unisono.checkpoint.format import State
from unisono.checkpoint.manifest import FILE_NAME, Facts, encode, read_manifest
from unisono.checkpoint.policy import CheckpointPolicy
from unisono.checkpoint.store import write
from unisono.collectives.loopback import run_ranks
from unisono.errors import CheckpointError, ConfigError, UnisonoError
from unisono.observe.compare import first_difference
from unisono.observe.ledger import Entry, Ledger
from unisono.system.disk import mend
from unisono.train.run_directory.checkpoints import Checkpoints
from unisono.train.run_directory.record import RunRecord

PAGE = 4096


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 300 KB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def leave_free(disk, pages):
    """Fill the disk but for so many pages."""
    ballast = disk / "ballast"
    ballast.unlink(missing_ok=True)
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize // PAGE
    ballast.write_bytes(bytes(max(0, free - pages) * PAGE))


def test_row_24_every_page_of_a_full_disk(small_disk, reference):
    """With 0, 1, 2, ... free pages a run ends with one message that names file and room, or well: the same bits."""
    out, seen = small_disk / "run", []
    for _ in ("train", "look at what is complete"):
        for pages in range(40):
            leave_free(small_disk, pages)
            try:
                job.train(str(out), [])
            except (CheckpointError, ConfigError) as error:
                seen.append(str(error))
                assert str(out) in seen[-1]
                assert "No space left" in seen[-1] or "not enough room" in seen[-1]
                assert "are untouched" not in seen[-1] or any(out.glob("checkpoints/step-*"))
                assert isinstance(error, ConfigError) or error.is_final
            else:
                break
    theirs, ours = (json.loads((path / "result.json").read_text()) for path in (reference, out))
    assert len(seen) > 5
    assert any(re.search(r"ledger\.jsonl: No space left .* bytes needed.*Hint: ", text) for text in seen), seen
    assert first_difference(reference / "ledger.jsonl", out / "ledger.jsonl") is None
    prints = (theirs["fingerprint"], ours["fingerprint"])
    seen_as = "equal" if prints[0] == prints[1] else "fingerprints differ"
    record(24, "a disk that is full, page by page", expected="equal", seen=seen_as, fingerprints=prints)


def test_row_27_a_disk_that_takes_nothing(small_disk):
    """A read-only disk, or a file in the directory's place, is refused before anything is trained."""
    (small_disk / "file").write_text("x")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for out, words in ((small_disk / "run", "Read-only file system"), (small_disk / "file", "")):
        with pytest.raises(ConfigError, match=f"expected a directory that can be written, got {out}.*{words}"):
            job.train(str(out), ["raise!@0:0"])


def test_row_29_a_directory_that_shows_late(tmp_path):
    """A rank whose file system shows a checkpoint only after a while waits for it: the leader has decided."""
    path = write(tmp_path, 7, state_of(7), facts=Facts(run=RUN))
    hidden = path.rename(tmp_path / "hidden")
    sha256, loaded = read_manifest(hidden).sha256, []

    def play(transport):
        checkpoints = Checkpoints(tmp_path, transport, CheckpointPolicy())
        if transport.rank:
            loaded.append(checkpoints.load(RUN, path.name, sha256)[0])

    showing = threading.Timer(0.3, lambda: hidden.rename(path))
    showing.start()
    run_ranks(play, 2)
    showing.join()
    assert loaded == [7]


def test_a_ledger_names_the_full_disk(tmp_path, monkeypatch):
    """Where a ledger cannot be opened, continued or synced, the file, the room and the way on are named, as it is."""
    ledger = Ledger(tmp_path / "ledger.jsonl", 0)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for act in (ledger.sync, lambda: Ledger(tmp_path / "ledger.jsonl", 0)):
        with pytest.raises(CheckpointError, match=r"ledger\.jsonl: No space left on device \(.*free\).*Hint: ") as full:
            act()
        assert full.value.is_final and "No checkpoint has been written. " in str(full.value)
        assert str(full.value).endswith("repeat the command; it starts from the beginning.")
    (tmp_path / "checkpoints" / "step-00000004.0123abcd").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"checkpoints are untouched.*resumes from the newest of them"):
        ledger.sync()
    entry = Entry(step=1, epoch=0, num_samples=1, samples="", loss="", gradient="", weights="", lr="")
    ledger.close()
    ledger._file = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115 - the ledger closes it
    with pytest.raises(CheckpointError, match="bytes needed"):
        ledger.append_now(entry)
    ledger.close()  # without another word


def test_a_limit_on_file_sizes_is_no_full_disk(tmp_path, monkeypatch):
    """A ledger and a checkpoint that grow beyond it name the file and the limit; the same command fails again."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    hint = r"File too large \(.*Hint: mend the cause \(ulimit -f unlimited; .* no file of more than 4096 bytes, or ch"
    ledger, state = Ledger(tmp_path / "ledger.jsonl", 0), State(tensors={"model": {"w": torch.zeros(5000)}}, values={})
    entry = Entry(step=1, epoch=0, num_samples=1, samples="x" * 5000, loss="", gradient="", weights="", lr="")
    acts = lambda: ledger.append_now(entry), lambda: write(tmp_path / "checkpoints", 1, state)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        for act in acts:
            with pytest.raises(CheckpointError, match=hint) as limited:
                act()
            assert limited.value.is_final
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        ledger.close()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert mend(OSError(errno.EFBIG, "")) == "take a file system that holds larger files"


def test_all_ranks_hear_of_the_full_disk(tmp_path, monkeypatch):
    """The leader alone opens the ledger; where that fails, the others stop with its words instead of waiting."""
    monkeypatch.setattr(
        "unisono.train.run_directory.ledgers.Ledger", lambda *_, **__: (_ for _ in ()).throw(CheckpointError("is full"))
    )
    words = {}

    def play(transport):
        opened = RunRecord(tmp_path / "run", transport)
        try:
            opened.resume({"seed": 0})
        except UnisonoError as error:
            words[transport.rank] = f"{type(error).__name__}: {error}"
        opened.close()

    run_ranks(play, 2)
    assert words[0] == "CheckpointError: is full"
    assert words[1].startswith("LeaderFailed: ")
    assert "is full" in words[1]


@pytest.mark.parametrize(
    "content", [b"", b"no safetensors at all" * 9, b"\xff" * 64, b"{}", b"[]", b"\x02\0\0\0\0\0\0\0{}"]
)
@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_hashes_that_fit_what_cannot_be_loaded(two, name, content):  # noqa: F811
    """A shard or state that its manifest vouches for but nobody can load: said, and the older one is taken."""
    new = two[2]
    manifest = read_manifest(new)
    (new / name).write_bytes(content)
    forged = {**manifest.files, name: sum_of(content)}
    (new / FILE_NAME).write_bytes(encode(manifest.step, forged, manifest.facts))
    is_empty_but_whole = (name, content) in ((("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}"), ("state.json", b"{}"))
    if not is_empty_but_whole:
        assert name in check_fallback(two)


def sum_of(content):
    import hashlib

    return FileSum(len(content), hashlib.sha256(content).hexdigest())
