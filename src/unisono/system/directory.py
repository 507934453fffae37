"""One directory, held open: what lies in it is reached by name, relative to a descriptor, and never through a link.

Who may write into a directory can put a link, a pipe or a device in a file's place, also while a run is at work. So a
file is opened relative to the directory's descriptor and without following a link, must be a regular file, is created
only under a name that nobody has, and replaced by a rename from a name that nobody can guess. Every call goes through
``os`` and a descriptor, so that a test can record, fail or replay each one.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, Self, final

from unisono.errors import CheckpointError
from unisono.system.descriptors import File, pieces

_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe without a writer would block for ever
_KINDS = {
    stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFREG: "a file",
}  # fmt: skip


class Judge(Protocol):
    """Refuses what belongs to, or may be written by, the wrong users (`owners`)."""

    def check_directory(self, path: Path, status: os.stat_result) -> None:
        """Look at a directory."""

    def check_file(self, path: Path, status: os.stat_result) -> None:
        """Look at a file."""


@final
class Directory:
    """A directory, held open until `close`; also a context manager.

    What the system refuses is an `OSError`; no regular file, or a stranger's, a `CheckpointError`.

    Args:
        path: For messages; what lies in the directory is reached through the descriptor alone.
        descriptor: Of the directory; closed with it.
        owners: Whose files it may hold; None: everybody's, which is enough for reading.
    """

    def __init__(self, path: Path, descriptor: int, owners: Judge | None = None) -> None:
        self.path = path
        self.owners = owners
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path, *, follow: bool = True) -> "Directory":
        """Open a directory that is there.

        Args:
            path: Links on the way to it are followed, once and for all.
            follow: Whether the last name, too, may be a link.

        Raises:
            CheckpointError: The last name is a link, and `follow` is false.
            OSError: There is none, or it cannot be read.
        """  # noqa: DOC501 - a function makes the error
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
            return cls(path, os.open(path, flags))
        except OSError as error:
            if not follow and path.is_symlink():
                raise _other_kind(path, "a directory", os.lstat(path)) from error
            raise

    @classmethod
    def make(cls, path: Path) -> "Directory":
        """Open a directory; made where it is missing, private to its owner, with its parents, names on the disk."""
        missing = [path]
        while not missing[-1].is_dir() and missing[-1] != missing[-1].parent:
            missing.append(missing[-1].parent)
        for place in reversed(missing[:-1]):
            with contextlib.suppress(FileExistsError):
                os.mkdir(place, 0o700)  # noqa: PTH102 - see the module docstring
                with contextlib.suppress(PermissionError), cls.open(place.parent) as parent:
                    parent.sync()  # who may not read the parent may still write there
        return cls.open(path)

    @property
    def descriptor(self) -> int:
        """Its descriptor, -1 once it is closed."""
        return self._descriptor

    def child(self, name: str, *, make: bool = False) -> "Directory":
        """Open a directory in this one, which must be as safe as this one.

        Args:
            name: One name.
            make: Make it where it is missing, and put its name on the disk.

        Raises:
            CheckpointError: It is a link, or no directory.
            ConfigError: Others than the owners of this one may write there.
            OSError: It cannot be opened or made.
        """
        if make:
            with contextlib.suppress(FileExistsError):
                self.mkdir(name)
                self.sync()
        with self._told_apart(name, "a directory"):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            found = Directory(self.path / name, os.open(name, flags, dir_fd=self._descriptor), self.owners)
        try:
            if self.owners is not None:
                self.owners.check_directory(found.path, os.fstat(found.descriptor))
        except BaseException:
            found.close()
            raise
        return found

    def mkdir(self, name: str) -> None:
        """Make a directory, private to its owner."""
        os.mkdir(name, 0o700, dir_fd=self._descriptor)

    def names(self) -> list[str]:
        """Return the names of what lies here."""
        return os.listdir(self._descriptor)  # noqa: PTH208

    def status(self, name: str) -> os.stat_result | None:
        """Return what is known about a name, of a link itself; None where there is nothing."""
        try:
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[tuple[int, int]]:
        """Open a file for reading; yields descriptor and size."""
        descriptor = self.open_file(name, os.O_RDONLY)
        try:
            yield descriptor, os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, None where there is nothing of that name."""
        try:
            with self.reading(name) as (descriptor, _):
                return b"".join(pieces(descriptor))
        except FileNotFoundError:
            return None

    def create(self, name: str, mode: int = 0o600) -> File:
        """Create a file, private to its owner unless `mode` says more, and open it for writing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE
        return File(os.open(name, flags, mode, dir_fd=self._descriptor))

    def append(self, name: str) -> File:
        """Open a file for writing at its end, made where it is missing; one with a second name elsewhere is copied."""
        found = self.status(name)
        if found is not None and stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            self.replace(name, self.read(name) or b"")
        return File(self.open_file(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND))

    def open_file(self, name: str, flags: int) -> int:
        """Open a regular file and return its descriptor; as `os.open`, but never through a link."""
        with self._told_apart(name, "a file"):
            descriptor = os.open(name, flags | _SAFE, 0o600, dir_fd=self._descriptor)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _other_kind(self.path / name, "a file", status)
            if self.owners is not None:
                self.owners.check_file(self.path / name, status)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def replace(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Put `data` under a name, whole or not at all, and on the disk."""
        with self.replacing(name, sync=sync) as file:
            file.write(data)

    @contextlib.contextmanager
    def replacing(self, name: str, *, sync: bool = True, mode: int = 0o600, is_lasting: bool = True) -> Iterator[File]:
        """As `replace`, with what is written into the file that this yields.

        Args:
            name: As in `replace`.
            sync: As in `replace`.
            mode: Who may read the file.
            is_lasting: Whether it must survive a crash of the machine; False spares the disk.

        Raises:
            OSError: As `replace`.
        """
        temporary = f".{name}.{os.urandom(8).hex()}.tmp"
        try:
            with self.create(temporary, mode) as file:
                yield file
                if is_lasting:
                    file.sync()
            self.rename(temporary, name)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise
        if sync and is_lasting:
            self.sync()

    def rename(self, old: str, new: str) -> None:
        """Give what lies here another name; a file of that name is replaced."""
        os.rename(old, new, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, a link itself, or a directory with all that is in it; what is gone already is no error."""
        found = self.status(name)
        with contextlib.suppress(FileNotFoundError):
            if found is not None and stat.S_ISDIR(found.st_mode):
                shutil.rmtree(name, dir_fd=self._descriptor)
            else:
                os.unlink(name, dir_fd=self._descriptor)

    def sync(self) -> None:
        """Put the names of what lies here on the disk."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that cannot do so for a directory: nothing more to be done
                raise

    def close(self) -> None:
        """Close it; safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _told_apart(self, name: str, wanted: str) -> Iterator[None]:
        """Say what is there where it is not what is wanted; other errors stay as they are."""
        try:
            yield
        except OSError as error:
            found = self.status(name)
            if found is not None and stat.S_IFMT(found.st_mode) != (stat.S_IFDIR if "dir" in wanted else stat.S_IFREG):
                raise _other_kind(self.path / name, wanted, found) from error
            raise


@contextlib.contextmanager
def entered(place: Path | Directory, *, follow: bool = True, make: bool = False) -> Iterator[Directory]:
    """Yield a directory that is open already, or open one by its path (`open`, `make`) as long as that is needed."""
    if isinstance(place, Directory):
        yield place
        return
    with Directory.make(place) if make else Directory.open(place, follow=follow) as found:
        yield found


def _other_kind(path: Path, wanted: str, status: os.stat_result) -> CheckpointError:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
    return CheckpointError(f"expected {wanted} at {path}, found {kind}. Hint: see who has put it there; remove it.")
