"""A running run is told to shrink or to grow: a socket in its directory, the launcher's end and the asker's.

In: the run directory, and one line of JSON either way. Out: events for the launcher, an answer for the asker. The
socket is its owner's alone (mode 0600, and the kernel says who has come); it is reached from the directory's
descriptor, so its path may be of any length. It goes with the launcher; one that was killed leaves it behind, and the
next launch puts its own in the place. On several hosts each launcher has one of its own, also where they share the
directory: a socket is reached on its own host only. Must not import torch.
"""

import contextlib
import json
import os
import pwd
import re
import socket
import stat
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

from unisono.errors import ConfigError
from unisono.system.directory import Directory

CONTROL_FILE = "control.sock"  #: Of the first host, or the only one.
_NAME = re.compile(r"control(-\d+)?\.sock")
_REQUEST_S = 5.0
_BYTES = 1 << 16
_MOST = 32  # callers at once: the launcher's descriptors are for its workers
_OVER = {"failed": "the run has ended before"}


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody wants the world to have so many workers, and waits for the answer."""

    workers: Any  #: As it was sent.
    answer: Callable[[dict[str, Any]], None]  #: Takes it, once.


@final
class Control:
    """The launcher's end; also a context manager; `put` takes what is asked, and is called in threads."""

    def __init__(self, put: Callable[[Asked], None]) -> None:
        self._put = put
        self._directory: Directory | None = None
        self._name = CONTROL_FILE
        self._listener = socket.socket(socket.AF_UNIX)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_closed = False

    def serve(self, place: str, node: int = 0) -> str:
        """Listen in a run directory, where nothing is listened to yet; return why that cannot be, empty where it can.
        Without a `place` it does nothing. `node`: node rank of this host.
        """
        if not place or self._directory is not None:
            return ""
        try:
            self._directory = directory = Directory.open(Path(place))
            self._name = f"control-{node}.sock" if node else CONTROL_FILE
            directory.remove(self._name)  # a dead launcher's: the directory is ours by its lock
            os.fchmod(self._listener.fileno(), 0o600)  # before it has a name: that is made with this mode
            self._listener.bind(_path(directory, self._name))
            self._status = directory.status(self._name)
            self._listener.listen()
        except OSError as error:
            return f"no socket can be made in {place}: {error.strerror}"
        threading.Thread(target=self._accept, name="unisono-control", daemon=True).start()
        return ""

    def close(self) -> None:
        """Listen no more, and tell those that wait that it is over; safe to call twice."""
        with self._lock:
            self._is_closed, waiting = True, [*self._open]
        for caller in waiting:
            self._answer(caller, _OVER)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        directory, self._directory = self._directory, None
        if directory is not None:
            with directory, contextlib.suppress(OSError):
                found = directory.status(self._name)
                if found is not None and self._status is not None and os.path.samestat(found, self._status):
                    directory.remove(self._name)  # and not that of a later launch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                with self._lock:
                    self._open.add(caller)
                if len(self._open) > _MOST:
                    self._answer(caller, {"refused": f"{_MOST} others are asking; ask again"})
                    continue
                threading.Thread(target=self._hear, args=(caller,), name="unisono-control", daemon=True).start()

    def _hear(self, caller: socket.socket) -> None:
        try:
            caller.settimeout(_REQUEST_S)
            line = _line(caller)  # first: an end that is closed before it has read resets the other
            if _peer(caller) != os.geteuid():
                self._answer(caller, {"refused": "only the user whose run it is may change it"})
                return
            workers = json.loads(line)["workers"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            self._answer(caller, {"refused": 'a request is a line such as {"workers": 2}'})
            return
        self._put(Asked(workers, lambda answer: self._answer(caller, answer)))
        if self._is_closed:
            self._answer(caller, _OVER)

    def _answer(self, caller: socket.socket, answer: dict[str, Any]) -> None:
        """Answer the caller, if it has no answer yet; it may be gone."""
        with self._lock:
            if caller not in self._open:
                return
            self._open.discard(caller)
        with caller, contextlib.suppress(OSError):
            caller.send(json.dumps(answer).encode() + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def ask(path: Path, workers: int) -> dict[str, Any]:
    """Ask a launcher of a run for so many workers; return its answer when there are, or why not.

    Of several launchers that one which answers on this host, the first host's before others.

    Args:
        path: The run directory.
        workers: How many.

    Raises:
        ConfigError: Another user's run, or something else than a socket.
        FileNotFoundError: Nobody listens there.
        ConnectionError: Who has listened there is gone.
        OSError: It cannot be reached.
    """
    with Directory.open(path) as directory:
        names = sorted(filter(_NAME.fullmatch, directory.names()), key=lambda name: (len(name), name))
        for name in names[:-1]:
            with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):  # its host is another, or lost
                return _ask(path, directory, name, workers)
        return _ask(path, directory, names[-1] if names else CONTROL_FILE, workers)


def _ask(path: Path, directory: Directory, name: str, workers: int) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as caller:
        found = directory.status(name)
        if found is None:
            raise FileNotFoundError(name)
        if not stat.S_ISSOCK(found.st_mode):
            raise ConfigError(f"expected a launcher's socket at {path / name}, found something else.")
        if found.st_uid != os.geteuid():
            raise _strangers(path, found.st_uid)
        caller.connect(_path(directory, name))
        if (owner := _peer(caller)) != os.geteuid():
            raise _strangers(path, owner)
        caller.sendall(json.dumps({"workers": workers}).encode() + b"\n")
        answer = json.loads(_line(caller) or json.dumps({"failed": "its launcher has been killed meanwhile"}))
    return dict(answer)


def _strangers(path: Path, user_id: int) -> ConfigError:
    try:
        name = pwd.getpwuid(user_id).pw_name
    except KeyError:
        name = str(user_id)
    return ConfigError(f"expected a run of this user's, got {path}, which user {name} runs. Hint: ask as {name}.")


def _path(directory: Directory, name: str) -> str:
    """Return a short path of the socket: the system takes none of more than 107 bytes."""
    return f"/proc/self/fd/{directory.descriptor}/{name}"


def _peer(end: socket.socket) -> int:
    """Return the user id of the process at the other end, as the kernel knows it."""
    told = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", told)[1])


def _line(end: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"\n") and len(found) < _BYTES and (part := end.recv(_BYTES)):
        found += part
    return found
