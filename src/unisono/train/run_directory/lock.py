"""One run per directory: a lock that dies with its holder, and a token that unmasks a holder who has been replaced.

``run.lock`` names the holder: host, boot id, process, its start time. The kernel drops the lock when the process ends,
however it ends, so what a dead run leaves behind is taken over. It is a lock of the open file, not of the process: that
one would fall as soon as the program itself reads ``run.lock``, say with a copy of the directory. A forked process
closes what it inherits of it, so data loaders that outlive their rank hold nothing. Where the kernel has no such locks,
the process's is taken; file systems without locks are judged by what the file says. Each launch's token is larger than
the one before; `RunLock.check`, called before a commit, fails once a later holder has come, be it of the same launch: a
rank that takes over from one which has died.

Source: https://www.gnu.org/software/libc/manual/html_node/Open-File-Description-Locks.html,
https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html (fencing tokens)
"""

import contextlib
import errno
import fcntl
import json
import os
import select
import socket
import struct
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from unisono.errors import CheckpointError, ConfigError
from unisono.system.directory import Directory
from unisono.system.processes import boot_id, look_at

LOCK_FILE = "run.lock"
_BYTES = 512
# A run that was killed a moment ago may still be dying.
_WAIT_S = 3.0
# A file server keeps the lock of a host that is lost for some time: 90 s, as a rule. On one machine it may be held by a
# worker that has been left out: its launcher, which stands still, ends it later.
_LEASE_S = 120.0
_LOOK_S = 0.01
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who holds a run directory, as ``run.lock`` tells."""

    host: str  #: Name of the machine.
    boot_id: str  #: Changes with every start of that machine.
    pid: int  #: Process id.
    start_ticks: int  #: When that process started, in clock ticks since boot: tells it from a later one of this number.
    since: str  #: Wall-clock time, for people only.
    token: int  #: The fencing token.

    @classmethod
    def this_process(cls, token: int) -> "Holder":
        """Return what this process writes."""
        return cls(
            host=socket.gethostname(), boot_id=boot_id(), pid=os.getpid(), start_ticks=look_at(os.getpid()).start_ticks,
            since=time.strftime("%Y-%m-%d %H:%M:%S"), token=token,
        )  # fmt: skip

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine since its last start."""
        return self.boot_id == boot_id() and self.host == socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Whether that very process still runs on this machine."""
        return self.is_here and look_at(self.pid).start_ticks == self.start_ticks


@final
class RunLock:
    """Holds a run directory until `release` or the end of the process.

    A second one of the same process takes it over from the first.

    Args:
        directory: The run directory, held open.
        token: That of a holder of the same launch, which has died: it stays, and ``run.lock`` names this process. None:
            the launch is a new one.

    Attributes:
        token: Larger than that of every launch before.

    Raises:
        ConfigError: Another process holds it.
        CheckpointError: ``run.lock`` is no regular file, or a stranger's; or a later launch has had the directory.
        OSError: The file cannot be opened or written.
    """

    def __init__(self, directory: Directory, token: int | None = None) -> None:
        self._directory = directory
        self._place = os.path.realpath(directory.path)
        self._descriptor = directory.open_file(LOCK_FILE, os.O_RDWR | os.O_CREAT)
        try:
            for other in list(_HELD):
                if other._is_of(self._descriptor):
                    other.release()
            self._take(_WAIT_S if token is None else _LEASE_S)
            before = _read(self._descriptor)
            # A file that cannot be read was cut by a crash of the machine: any clock is ahead of any count.
            lost = before is None and os.fstat(self._descriptor).st_size > 0
            self.token = token or (int(time.time()) if lost else (before.token if before else 0) + 1)
            if token is not None and (before is None or before.token != token):
                raise self._taken(before)
            line = json.dumps(asdict(Holder.this_process(self.token))).encode()
            os.pwrite(self._descriptor, line.ljust(_BYTES - 1) + b"\n", 0)
            os.fsync(self._descriptor)
        except BaseException:
            self.release()
            raise
        _HELD.add(self)

    def check(self) -> None:
        """Fail if a later run has taken the directory; to be called right before a commit."""
        path = self._directory.path
        if self._descriptor < 0:
            raise CheckpointError(
                f"{path} has been taken over by another Run of this program: this one may no longer write there. "
                "Hint: close() the first, or give each Run a directory of its own."
            )
        if moved := self._moved():
            raise CheckpointError(
                f"the run directory {path} {moved} while the run was using it, so nothing more is kept there. "
                "Hint: put it back and repeat the command, or choose another --out (out=)."
            )
        now = _read(self._descriptor)
        if now is None or (now.token, now.pid) != (self.token, os.getpid()):
            raise self._taken(now)
        found = self._directory.status(LOCK_FILE)
        if found is None or not os.path.samestat(found, os.fstat(self._descriptor)):
            raise CheckpointError(
                f"{path} has lost its {LOCK_FILE}: another run may be using the directory, so this one (token "
                f"{self.token}) may no longer write there. Hint: leave {LOCK_FILE} where it is; repeat the command."
            )

    def release(self) -> None:
        """Let others have the directory; safe to call twice."""
        _HELD.discard(self)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _taken(self, now: Holder | None) -> CheckpointError:
        whose = f" by {_words(now)}" if now is not None else ""
        return CheckpointError(
            f"{self._directory.path} has been taken over{whose}: this run (token {self.token}) may no longer write "
            "there. Hint: let one run at a time use a directory."
        )

    def _moved(self) -> str:
        """Return what has become of the directory, empty where it still is where it was."""
        ours = os.fstat(self._directory.descriptor)
        if ours.st_nlink == 0:
            return "has been deleted"
        try:
            if os.path.samestat(os.stat(self._place), ours):  # noqa: PTH116 - a path as it was, whatever links do now
                return ""
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:  # that we may not look says nothing
            return ""
        with contextlib.suppress(OSError):
            return f"has been renamed to {os.readlink(f'/proc/self/fd/{self._directory.descriptor}')}"  # noqa: PTH115
        return "has been renamed"

    def _is_of(self, descriptor: int) -> bool:
        return os.path.samestat(os.fstat(self._descriptor), os.fstat(descriptor))

    def _take(self, lease_s: float) -> None:
        began = time.monotonic()
        while not self._try():
            holder = _read(self._descriptor)
            if holder is not None and _wait_for_end(holder, began + (lease_s if holder.is_alive else _WAIT_S)):
                continue
            if holder is not None and not holder.is_here and time.monotonic() < began + lease_s:
                time.sleep(_LOOK_S)
                continue
            if holder is not None and holder.is_here and not holder.is_alive:
                raise ConfigError(
                    f"{self._directory.path} is locked, although {_words(holder)} has ended: a process that it has "
                    f"started still has {LOCK_FILE} open. Hint: find it (lsof, fuser) and end it, or choose another "
                    "--out (out=)."
                )
            raise ConfigError(_in_use(self._directory.path, holder))

    def _try(self) -> bool:
        for lock in (_lock_open_file, _lock_process):
            try:
                lock(self._descriptor)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    return False
                if error.errno not in _NO_LOCKS:
                    raise
            else:
                return True
        holder = _read(self._descriptor)  # no locks on this file system
        return holder is None or holder.pid == os.getpid() or not holder.is_alive


_HELD: set[RunLock] = set()
"""The locks of this process; a child that it forks lets go of its share of them."""


def _let_go() -> None:
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_let_go)


def check_free(directory: Directory) -> None:
    """Refuse a directory that a process of this machine uses; nothing is taken, and a holder that ends is waited for.

    Raises:
        ConfigError: It is in use.
    """
    try:
        descriptor = directory.open_file(LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        deadline = time.monotonic() + _WAIT_S
        while (holder := _read(descriptor)) is not None and holder.is_alive and _is_locked(descriptor):
            if not _wait_for_end(holder, deadline):
                raise ConfigError(_in_use(directory.path, holder))
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Whether another holds a lock on the file; False where the kernel cannot say."""
    if not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    whole = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, whole)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return bool(struct.unpack("hhqqi0q", found)[0] != fcntl.F_UNLCK)


def _in_use(path: Path, holder: Holder | None) -> str:
    return f"{path} is in use by {_words(holder)}. Hint: wait for that run, stop it, or choose another --out (out=)."


def _lock_open_file(descriptor: int) -> None:
    if not hasattr(fcntl, "F_OFD_SETLK"):
        raise OSError(errno.EINVAL, "no locks of open files")
    whole = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # struct flock
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, whole)


def _lock_process(descriptor: int) -> None:
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _wait_for_end(holder: Holder, deadline: float) -> bool:
    """Wait until a process of this machine has ended; whether it has, in time."""
    if not holder.is_here:
        return False
    try:
        descriptor = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        time.sleep(_LOOK_S)  # its lock falls in a moment, or a process that it has started holds it
        return time.monotonic() < deadline
    try:
        return bool(select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0])
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(descriptor, _BYTES, 0)))
    except (ValueError, TypeError):
        return None


def _words(holder: Holder | None) -> str:
    if holder is None:
        return "another run"
    return f"process {holder.pid} on {holder.host} since {holder.since}"
