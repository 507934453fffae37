"""Private directories for what a launch needs while it lasts, and the end of those that killed launches have left.

Who makes one holds a lock on it (``flock``, which falls with the process, however that ends), and its name begins with
this boot of the machine. So who can take the lock, under the same kernel, has the proof that nobody uses the directory,
whatever process numbers mean in containers that share it. Cleaners such as systemd-tmpfiles heed the lock too. Must not
import torch.
"""

import contextlib
import errno
import functools
import os
import re
import resource
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.system.descriptors import try_lock
from unisono.system.directory import Directory
from unisono.system.disk import hint_of
from unisono.system.processes import boot_id

_LONGEST_SOCKET_PATH = 107  # unix(7): 108 bytes with the closing zero
_OURS = re.compile(r"unisono-(?:[a-z]+-)?([0-9a-f]{8})-[a-z0-9_]{8}")


@contextlib.contextmanager
def scratch_directory(purpose: str = "") -> Iterator[str]:
    """Make a directory for temporary files, private to this user, and remove it at the end."""
    path, descriptor, maker = "", -1, os.getpid()
    try:
        try:
            home = tempfile.gettempdir()
            _collect_once(home)
            with interrupts_held_back():  # between the directory's making and here nobody would remove it
                path, descriptor = _make(home, f"unisono-{purpose}-" if purpose else "unisono-")
        except OSError as error:
            no_growth = OSError(errno.EFBIG, "no file may grow")  # Python says that no directory can be used
            why = error if resource.getrlimit(resource.RLIMIT_FSIZE)[0] else no_growth
            raise ConfigError(
                f"expected a directory for temporary files that can be written, got: {why.strerror or why}."
                f"{hint_of(why, 'free some space there, or TMPDIR=DIR for another')}"
            ) from error
        yield path
    finally:
        if path and os.getpid() == maker:  # not in a child that was forked meanwhile and ends before us
            shutil.rmtree(path, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Let SIGINT wait for the end of the block; processes that are started in it begin with it blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def meet_in(directory: str) -> None:
    """Let this process and its children keep the sockets of multiprocessing in a directory that no kill leaves behind.

    Python's own directory for them, ``pymp-*``, is removed only by a process that ends by itself. Nothing is done where
    the path would be too long for a socket.
    """
    if len(os.fsencode(directory)) <= _LONGEST_SOCKET_PATH - len("/listener-12345678"):
        _settings()["tempdir"] = directory


def meet() -> None:
    """As `meet_in`, in a scratch directory of this process's own; nothing is done where there is a place already."""
    if _settings().get("tempdir") is None:
        from multiprocessing.util import Finalize

        stack = contextlib.ExitStack()
        meet_in(stack.enter_context(scratch_directory()))
        Finalize(
            None, stack.close, exitpriority=-100
        )  # as Python's own: after the listeners, which remove their sockets


def _settings() -> dict[str, Any]:
    """Return what multiprocessing hands on from this process to its children."""
    import multiprocessing  # not at the top: `--help` must not pay for it

    here: Any = multiprocessing.current_process()
    found: dict[str, Any] = here._config
    return found


def collect(home: str) -> list[str]:
    """Remove this user's scratch directories that no process holds, and return their names."""
    removed: list[str] = []
    boot = boot_id()[:8]
    with contextlib.suppress(OSError), Directory.open(Path(home)) as place:
        for name in place.names():
            match = _OURS.fullmatch(name)
            if match is None or match[1] != boot:
                continue
            with contextlib.suppress(OSError), place.child(name) as found:  # in use, a stranger's, a link, gone
                status = os.fstat(found.descriptor)
                if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != stat.S_IRWXU:
                    continue
                if not try_lock(found.descriptor):
                    continue
                for inner in found.names():
                    found.remove(inner)
                os.rmdir(name, dir_fd=place.descriptor)
                removed.append(name)
    return removed


@functools.cache
def _collect_once(home: str) -> None:
    collect(home)


def _make(home: str, prefix: str) -> tuple[str, int]:
    """Return a new directory and the descriptor that holds its lock, -1 where there are no locks."""
    boot = boot_id()[:8]
    while boot:
        path = tempfile.mkdtemp(prefix=f"{prefix}{boot}-", dir=home)
        descriptor = -1
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            if try_lock(descriptor) and os.path.samestat(os.stat(path), os.fstat(descriptor)):  # noqa: PTH116
                return path, descriptor
        except OSError as error:
            if error.errno != errno.ENOENT:  # a file system without locks
                boot = ""
                with contextlib.suppress(OSError):
                    os.rmdir(path)  # noqa: PTH106
        if descriptor >= 0:  # another launch has come between, and removes it
            os.close(descriptor)
    return tempfile.mkdtemp(prefix=prefix, dir=home), -1
