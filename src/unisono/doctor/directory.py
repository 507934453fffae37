"""Whether a directory keeps what checkpoints rest on: a rename is all or nothing, a new name has one winner.

All files are made in a directory of their own inside it, which is removed. Seen from this host only.
"""

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from unisono.doctor.finding import Finding, fail, ok, warn

_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "9p", "lustre", "ceph")
_ROUNDS = 200
_SIZE = 1 << 16


def check_directory(directory: str | os.PathLike[str]) -> Finding:
    """Try renames and exclusive creation in a directory."""
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".unisono-doctor-", dir=directory))
    except OSError as error:
        hint = "create it, or choose another; runs write their checkpoints there."
        told = f"{directory}: cannot write ({error.strerror or error})"
        return fail("directory", told, hint)
    kind = filesystem_of(Path(directory).resolve(), Path("/proc/mounts").read_text())
    free = shutil.disk_usage(directory).free
    try:
        wrong = _faults(scratch)
    except OSError as error:
        wrong = [f"{error.strerror or error}"]
    finally:
        shutil.rmtree(scratch)
    if wrong:
        hint = "checkpoints are not safe here: save to another file system (--out)."
        return fail("directory", f"{directory} ({kind}): {'; '.join(wrong)}", hint)
    told = f"{directory} ({kind}): renames are atomic, one winner for a new name, {free / 2**30:.1f} GiB free"
    if kind in _NETWORK:
        hint = "a network file system: what other hosts see, and when, was not tested from here."
        return warn("directory", told, hint)
    if free < 1 << 30:
        hint = "less than 1 GiB is free: a run that cannot save stops."
        return warn("directory", told, hint)
    return ok("directory", told)


def filesystem_of(path: Path, mounts: str) -> str:
    """Return the kind of file system that holds a path, from the text of ``/proc/mounts``."""
    places = [line.split()[1:3] for line in mounts.splitlines()]
    holding = [(len(place), kind) for place, kind in places if path.is_relative_to(place)]
    # Of mounts at one place, the last covers the others.
    return max(reversed(holding), key=lambda found: found[0])[1] if holding else "unknown"


def _faults(scratch: Path) -> list[str]:
    """Return what went wrong, empty where all is well."""
    wrong = []
    torn = torn_reads(scratch / "state")
    if torn:
        wrong.append(f"{torn} reads during a rename saw a missing or mixed file")
    os.close(os.open(scratch / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    try:
        os.close(os.open(scratch / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        wrong.append("a file could be created exclusively twice")
    except FileExistsError:
        pass
    (scratch / "new").mkdir()
    (scratch / "new" / "part").write_bytes(b"x")
    (scratch / "new").rename(scratch / "step")
    if (scratch / "new").exists() or (scratch / "step" / "part").read_bytes() != b"x":
        wrong.append("a renamed directory kept its old name or lost its files")
    folder = os.open(scratch, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return wrong


def torn_reads(path: Path, replace: Callable[[Path], Callable[[bytes], None]] | None = None) -> int:
    """Replace a file many times while another thread reads it; return how many reads saw no whole version. Without
    `replace` a new version is written beside it, synced, renamed.
    """
    put = (replace or Replace)(path)
    put(b"0" * _SIZE)
    done, torn = threading.Event(), 0

    def read() -> None:
        nonlocal torn
        is_last = False
        while not is_last:
            is_last = done.is_set()  # before the read: the last version is read too
            try:
                seen = path.read_bytes()
            except OSError:
                torn += 1
                continue
            torn += len(seen) != _SIZE or len(set(seen)) != 1

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1, _ROUNDS):
            put(bytes([48 + number % 10]) * _SIZE)
    finally:
        done.set()
        reader.join()
    return torn


class Replace:
    """Writes a version of a file beside it and renames it into place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0

    def __call__(self, content: bytes) -> None:
        """Make `content` the file's."""
        self._number += 1
        beside = self.path.with_name(f"{self.path.name}.{self._number % 2}")
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            if self._number == 1:
                os.fsync(file.fileno())  # once: that it can be done is the question here
        beside.replace(self.path)
