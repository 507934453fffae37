"""A disk that forgets: records what a program asks of the file system, and shows what a power cut could leave of it.

After a cut, a file holds what was synced, or more of what was written since; a directory holds the names it had when
it was synced, or later ones. `cuts` makes the plain extremes of these after every recorded operation.
"""

import contextlib
import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock


@dataclass
class File:
    """Bytes as the program sees them, and as they were when last synced."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass
class Directory:
    """Names as the program sees them, and as they were when last synced."""

    entries: dict[str, Any] = field(default_factory=dict)
    synced: dict[str, Any] = field(default_factory=dict)


class Disk:
    """The tree below one directory; every change is kept as a copy of the tree."""

    def __init__(self, root: Path) -> None:
        self.path = root
        self.root = self._load(root)
        self.history: list[tuple[str, Directory]] = []
        self._keep("start")

    @contextlib.contextmanager
    def recording(self, broken: Callable[[str], bool] = lambda path: False) -> Iterator[None]:
        """Record what this process does; `broken` says of a path that its sync is forgotten (a negative control)."""
        opened: dict[int, str] = {}
        real = {name: getattr(os, name) for name in ("open", "close", "write", "pwrite", "fsync", "rename", "mkdir")}
        real |= {name: getattr(os, name) for name in ("unlink", "rmdir")}

        def where(path: Any, dir_fd: int | None = None) -> str | None:
            base = Path.cwd() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()
            full = os.path.normpath(base / path)
            return os.path.relpath(full, self.path) if full.startswith(str(self.path)) else None

        def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            place = where(path, dir_fd)
            descriptor: int = real["open"](path, flags, mode, dir_fd=dir_fd)
            if place is not None:
                opened[descriptor] = place
                folder, name = self._find(place)
                if flags & os.O_CREAT and name not in folder.entries:
                    folder.entries[name] = File()
                    self._keep(f"create {place}")
            return descriptor

        def close(descriptor: int) -> None:
            opened.pop(descriptor, None)
            real["close"](descriptor)

        def write(descriptor: int, data: Any) -> int:
            done: int = real["write"](descriptor, data)
            if descriptor in opened:
                folder, name = self._find(opened[descriptor])
                folder.entries[name].data += bytes(data[:done])
                self._keep(f"write {opened[descriptor]}")
            return done

        def pwrite(descriptor: int, data: Any, offset: int) -> int:
            done: int = real["pwrite"](descriptor, data, offset)
            if descriptor in opened:
                folder, name = self._find(opened[descriptor])
                folder.entries[name].data[offset : offset + done] = bytes(data[:done])
                self._keep(f"write {opened[descriptor]}")
            return done

        def fsync(descriptor: int) -> None:
            real["fsync"](descriptor)
            place = opened.get(descriptor)
            if place is None or broken(place):
                return
            folder, name = self._find(place)
            node = self.root if place == "." else folder.entries[name]
            node.synced = bytes(node.data) if isinstance(node, File) else dict(node.entries)
            self._keep(f"sync {place}")

        def rename(old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            before, after = where(old, src_dir_fd), where(new, dst_dir_fd)
            real["rename"](old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            if before is not None and after is not None:
                (folder, name), (target, called) = self._find(before), self._find(after)
                target.entries[called] = folder.entries.pop(name)
                self._keep(f"rename {before} {after}")

        def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            real["mkdir"](path, mode, dir_fd=dir_fd)
            if (place := where(path, dir_fd)) is not None:
                folder, name = self._find(place)
                folder.entries[name] = Directory()
                self._keep(f"mkdir {place}")

        def remove(call: str) -> Callable[..., None]:
            def act(path: Any, *, dir_fd: int | None = None) -> None:
                place = where(path, dir_fd)
                real[call](path, dir_fd=dir_fd)
                if place is not None:
                    folder, name = self._find(place)
                    del folder.entries[name]
                    self._keep(f"{call} {place}")

            return act

        hooks = {"open": open_, "close": close, "write": write, "fsync": fsync, "rename": rename, "mkdir": mkdir}
        hooks |= {"pwrite": pwrite, "unlink": remove("unlink"), "rmdir": remove("rmdir")}
        with contextlib.ExitStack() as stack:
            for name, hook in hooks.items():
                stack.enter_context(mock.patch.object(os, name, hook))
            yield

    def _find(self, place: str) -> tuple[Directory, str]:
        *parents, name = Path(place).parts or (".",)
        folder = self.root
        for part in parents:
            folder = folder.entries[part]
        return folder, name

    def _load(self, path: Path) -> Any:
        if path.is_file():
            return File(bytearray(path.read_bytes()), path.read_bytes())
        entries = {child.name: self._load(child) for child in path.iterdir()}
        return Directory(entries, dict(entries))

    def _keep(self, what: str) -> None:
        self.history.append((what, copy.deepcopy(self.root)))


def leave(node: Any, path: Path, kind: str) -> None:
    """Write what a power cut leaves of a tree: ``strict``, ``names`` (all names, synced bytes), ``torn``, ``all``."""
    if isinstance(node, File):
        torn = bytes(node.data[: max(len(node.synced), len(node.data) // 2)])
        path.write_bytes({"strict": node.synced, "names": node.synced, "torn": torn, "all": bytes(node.data)}[kind])
        return
    path.mkdir(parents=True)
    for name, child in (node.synced if kind == "strict" else node.entries).items():
        leave(child, path / name, kind)


KINDS = ("strict", "names", "torn", "all")
