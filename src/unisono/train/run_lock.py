"""One run per directory: a lock that dies with its holder, and a token that unmasks a holder who has been replaced.

``run.lock`` names the holder: host, boot id, process, its start time. The kernel drops the lock (POSIX ``fcntl``, which
forked data loaders do not inherit) when the process ends, however it ends, so what a dead run leaves behind is taken
over. File systems without locks are judged by what the file says. Each holder's token is larger than the one before;
`RunLock.check`, called before a commit, fails once a later holder has come.

Source: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html (fencing tokens)
"""

import errno
import fcntl
import json
import os
import select
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from unisono.errors import CheckpointError, ConfigError

LOCK_FILE = "run.lock"
_BYTES = 512
# A run that was killed a moment ago may still be dying.
_WAIT_S = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who holds a run directory, as ``run.lock`` tells.

    Attributes:
        host: Name of the machine.
        boot_id: Changes with every start of that machine.
        pid: Process id.
        start_ticks: When that process started, in clock ticks since boot: tells it from a later one of this number.
        since: Wall-clock time, for people only.
        token: The fencing token.
    """

    host: str
    boot_id: str
    pid: int
    start_ticks: int
    since: str
    token: int

    @classmethod
    def this_process(cls, token: int) -> "Holder":
        """Return what this process writes."""
        return cls(
            host=socket.gethostname(), boot_id=_boot_id(), pid=os.getpid(), start_ticks=_start_ticks(os.getpid()),
            since=time.strftime("%Y-%m-%d %H:%M:%S"), token=token,
        )  # fmt: skip

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine since its last start."""
        return self.boot_id == _boot_id() and self.host == socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Whether that very process still runs on this machine."""
        return self.is_here and _start_ticks(self.pid) == self.start_ticks


@final
class RunLock:
    """Holds a run directory until `release` or the end of the process.

    Args:
        directory: The run directory; must exist.

    Attributes:
        token: Larger than that of every holder before.

    Raises:
        ConfigError: Another process holds it.
        OSError: The file cannot be opened.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK_FILE
        # Never through a link: it could make us overwrite a stranger's file.
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._take(directory)
            before = _read(self._descriptor)
            # A file that cannot be read was cut by a crash of the machine: any clock is ahead of any count.
            lost = before is None and os.fstat(self._descriptor).st_size > 0
            self.token = int(time.time()) if lost else (before.token if before else 0) + 1
            line = json.dumps(asdict(Holder.this_process(self.token))).encode()
            os.pwrite(self._descriptor, line.ljust(_BYTES - 1) + b"\n", 0)
            os.fsync(self._descriptor)
        except BaseException:
            os.close(self._descriptor)
            raise

    def check(self) -> None:
        """Fail if a later run has taken the directory; to be called right before a commit.

        Raises:
            CheckpointError: It has, or the lock file is gone.
        """
        try:
            is_same = os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            is_same = False
        now = _read(self._descriptor)
        if not is_same or now is None or now.token != self.token:
            whose = f" by {_words(now)}" if now is not None and now.token != self.token else ""
            raise CheckpointError(
                f"{self._path.parent} has been taken over{whose}: this run (token {self.token}) may no longer write "
                "there. Hint: let one run at a time use a directory."
            )

    def release(self) -> None:
        """Let others have the directory; safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self, directory: Path) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not self._try():
            holder = _read(self._descriptor)
            if holder is None or not _wait_for_end(holder, deadline):
                raise ConfigError(
                    f"{directory} is in use by {_words(holder)}. "
                    "Hint: wait for that run, stop it, or choose another --out (out=)."
                )

    def _try(self) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            holder = _read(self._descriptor)  # no locks on this file system
            return holder is None or holder.pid == os.getpid() or not holder.is_alive
        return True


def _wait_for_end(holder: Holder, deadline: float) -> bool:
    """Wait until a process of this machine has ended; whether it has, in time."""
    if not holder.is_here:
        return False
    try:
        descriptor = os.pidfd_open(holder.pid)
    except ProcessLookupError:
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


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return ""


def _start_ticks(pid: int) -> int:
    """Return when a process started, -1 when it does not run (a zombie does not)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] in "ZX" else int(fields[19])
