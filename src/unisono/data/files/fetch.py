"""Files that a data set is made of: found, checked against a pin, or downloaded once per machine.

In: file names with their pins (SHA-256 and size), a directory of the user or mirror URLs. Out: paths whose
bytes are exactly the pinned ones. Also the lock between processes that every cache of this room uses.

This file runs in the launcher, before any worker starts: it imports no torch and reads no environment
variable (the mapping is passed in).
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, final

from unisono.data.files.resume import fetch_resuming
from unisono.errors import ConfigError, DataError
from unisono.options.quantities import BYTES, settle
from unisono.system.descriptors import try_lock

log = logging.getLogger(__name__)

T = TypeVar("T")

Tell = Callable[[str, int, int], object]
"""Told how far long work is: its name (``reading reviews``), how much of it is done, how much there is (0: unknown)."""


def untold(what: str, done: int, total: int) -> None:
    """Tell nobody."""


def told(items: Iterable[T], what: str, total: int, tell: Tell) -> Iterator[T]:
    """Yield `items`, telling how many of them are done."""
    tell(what, 0, total)
    for done, item in enumerate(items, start=1):
        yield item
        tell(what, done, total)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """What the bytes of a file must be."""

    sha256: str  #: SHA-256 of the whole file, 64 lower-case hexadecimal digits.
    size_bytes: int  #: Its length; lets a message say "cut short" and caps a download.

    def __post_init__(self) -> None:
        if len(self.sha256) != 64 or set(self.sha256) - set("0123456789abcdef"):
            raise ConfigError(f"expected 64 lower-case hexadecimal digits as sha256, got {self.sha256!r}.")
        settle(self, size_bytes=BYTES)

    def __str__(self) -> str:
        return f"{self.size_bytes:,} bytes with sha256 {self.sha256}"


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits, read in pieces; `DataError` where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, found: {error.strerror}. Hint: check the path.") from None


def check_pin(path: Path, pin: Pin) -> None:
    """Refuse (`DataError`) a file whose size or checksum is not the pinned one; name both."""
    found = Pin(sha256=sha256_file(path), size_bytes=path.stat().st_size)
    if found == pin:
        return
    what = "it is cut short" if found.size_bytes < pin.size_bytes else "it is not the original file"
    raise DataError(f"{path}: expected {pin}, found {found}; {what}. Hint: delete {path} and fetch the original again.")


def locate(
    pins: Mapping[str, Pin],
    *,
    source: Path | None,
    urls: Sequence[str],
    cache: Path,
    offline: bool = False,
    tell: Tell = untold,
) -> dict[str, Path]:
    """Return one path per file name, each with exactly the pinned bytes.

    Args:
        pins: What each file must be, by file name.
        source: The user's directory that holds the files (or the file, where only one is asked for);
            None downloads them into `cache`.
        urls: Mirrors, tried in order; each followed by the file name gives an address.
        cache: Directory for downloads.
        offline: Use what an earlier download left in `cache`, and no network.
        tell: Told how far a download is.

    Raises:
        DataError: A file is missing, has other bytes, or no mirror could deliver it.
    """
    if source is None:
        allowed = () if offline else urls
        return {name: download(name, pin, urls=allowed, cache=cache, tell=tell) for name, pin in pins.items()}
    paths = {name: _in_source(source, name, alone=len(pins) == 1) for name in pins}
    for name, pin in pins.items():
        check_pin(paths[name], pin)
    return paths


def _in_source(source: Path, name: str, *, alone: bool) -> Path:
    """Return the path of file `name` in what the user gave."""
    if alone and source.is_file():
        return source
    path = source / name
    if path.is_file():
        return path
    if not source.is_dir():
        found = "a file" if source.exists() else "nothing"
        raise DataError(f"{source}: expected a directory that holds {name}, found {found}. Hint: check the path.")
    held = sorted(entry.name for entry in source.iterdir())
    shown = ", ".join(held[:8]) + (", ..." if len(held) > 8 else "") if held else "an empty directory"
    raise DataError(f"{source}: expected a file {name}, found {shown}. Hint: put {name} into {source}.")


def download(
    name: str,
    pin: Pin,
    *,
    urls: Sequence[str],
    cache: Path,
    num_attempts: int = 2,
    pause_s: float = 1.0,
    timeout_s: float = 30.0,
    tell: Tell = untold,
) -> Path:
    """Return ``cache/name`` with exactly the pinned bytes; download it where needed, once per machine.

    Processes that ask for the same file at the same time wait for the first one. The file appears under
    its name only when complete and verified.

    Args:
        name: File name, in the cache and behind each mirror's URL.
        pin: What the file must be.
        urls: Mirrors, tried in order, all of them `num_attempts` times; none means: no network.
        cache: Directory that keeps the file.
        num_attempts: Rounds over all mirrors.
        pause_s: Wait between two rounds.
        timeout_s: Longest silence of a mirror.
        tell: Told how far it is, in KiB.

    Raises:
        DataError: No mirror delivered the pinned bytes (lists each mirror's failure and where to put the
            file by hand), or the cache cannot be written.
    """
    target = cache / name
    if _is_pinned(target, pin):
        return target
    by_hand = (
        f"Hint: fetch {name} on a machine with internet access and put it at {target}, or name the directory that "
        "holds it: --data DIR (data=)."
    )
    if not urls:
        found = "another file" if target.exists() else "nothing"
        raise DataError(f"{target}: expected {pin}, found {found}, and no download was allowed. {by_hand}")
    failures: dict[str, str] = {}  # the last one of each mirror
    with file_lock(cache / f".{name}.lock"):
        if _is_pinned(target, pin):
            return target
        if target.exists():
            log.warning("%s: not the pinned file; downloading it again", target)
        for round_index in range(num_attempts):
            time.sleep(pause_s if round_index else 0)
            for url in urls:
                try:
                    _retrieve(url + name, target, pin, timeout_s=timeout_s, tell=tell)
                    return target
                # The errors of requests are OSErrors; pooch reports a wrong checksum as ValueError.
                except (OSError, ValueError) as error:
                    failures[f"{url}{name}"] = _reason(error)
    raise DataError(
        f"{name}: expected {pin} from {len(urls)} mirrors, found none that delivers it, in {num_attempts} attempts:\n  "
        + "\n  ".join(f"{address}: {why}" for address, why in failures.items())
        + f"\n{by_hand}"
    )


def _reason(error: BaseException) -> str:
    """Return the innermost error's words; those of the libraries around it repeat address, port and class."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return getattr(error, "strerror", None) or str(error)


def _is_pinned(path: Path, pin: Pin) -> bool:
    return path.is_file() and path.stat().st_size == pin.size_bytes and sha256_file(path) == pin.sha256


def _retrieve(url: str, target: Path, pin: Pin, *, timeout_s: float, tell: Tell) -> None:
    """Download one address; `target` appears only when verified (pooch: temporary file, check, rename)."""

    def fetch(address: str, output: str, _: object) -> None:
        # What an interrupted download left goes on; once whole it is handed to pooch, and gone if it is not right.
        part = target.with_name(f".{target.name}.part")
        what, total = f"downloading {target.name} (KiB)", pin.size_bytes >> 10
        fetch_resuming(
            address,
            part,
            size_bytes=pin.size_bytes,
            timeout_s=timeout_s,
            tell=lambda have: tell(what, have >> 10, total),
        )
        part.replace(output)

    import pooch  # loads what only a download needs

    pooch.get_logger().setLevel(logging.WARNING)  # its line names a path of the cache, and neither size nor progress
    tell(f"downloading {target.name} (KiB)", 0, pin.size_bytes >> 10)
    pooch.retrieve(url, known_hash=f"sha256:{pin.sha256}", fname=target.name, path=target.parent, downloader=fetch)


@contextmanager
def file_lock(path: Path, *, timeout_s: float = 1800.0) -> Iterator[None]:
    """Hold an exclusive lock between processes of this machine while the block runs.

    The kernel frees the lock when its holder dies, so a lock file left behind blocks nobody.

    Raises:
        DataError: The lock file cannot be made, or another process holds it for longer than `timeout_s`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise DataError(
            f"{path.parent}: expected a cache directory that can be written, found: {error.strerror} "
            f"({error.filename}). Hint: pass another cache directory."
        ) from None
    try:
        deadline = time.monotonic() + timeout_s
        while not try_lock(handle):
            if time.monotonic() > deadline:
                raise DataError(
                    f"{path}: expected the lock within {timeout_s:g} s, found it still held by another "
                    "process. Hint: wait for that process, or stop it."
                )
            time.sleep(0.05)
        yield
    finally:
        os.close(handle)
