"""Download one address so that an interrupted transfer goes on where it stopped.

The bytes collect in a file of their own, which an error leaves behind; the next attempt, also of another mirror or of a
later process, asks for the rest only. Whether the whole is right is for a checksum to say, not for this file.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

_CHUNK = 1 << 16


def fetch_resuming(
    url: str, part: Path, *, size_bytes: int, timeout_s: float, tell: Callable[[int], object] = lambda have: None
) -> None:
    """Complete `part` to `size_bytes` from `url`.

    Args:
        url: http or https.
        part: What has arrived so far; created where missing, left behind on errors.
        size_bytes: Length of the whole file; a server that sends more is refused.
        timeout_s: Longest silence.
        tell: Told how many bytes have arrived.

    Raises:
        OSError: The server cannot be reached, answers with an error, or breaks off.
        ValueError: More bytes than expected; `part` is removed, since it cannot be right.
    """
    import requests

    have = part.stat().st_size if part.exists() else 0
    if have == size_bytes:
        return
    if have > size_bytes:
        part.unlink()
        have = 0
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    with requests.get(url, headers=headers, stream=True, timeout=timeout_s, allow_redirects=True) as answer:
        answer.raise_for_status()
        have = have if have and _goes_on_at(answer, have) else 0
        with part.open("r+b" if have else "wb") as file:
            file.seek(have)
            for chunk in answer.iter_content(_CHUNK):
                have += len(chunk)
                if have > size_bytes:
                    break
                file.write(chunk)
                tell(have)
    if have > size_bytes:
        part.unlink()
        raise ValueError(f"expected {size_bytes:,} bytes, the server sends more")
    if have < size_bytes:
        raise OSError(f"expected {size_bytes:,} bytes, the server broke off after {have:,}")


def _goes_on_at(answer: Any, have: int) -> bool:
    """Whether the server sends the rest only; one that knows no ranges sends all again."""
    return answer.status_code == 206 and str(answer.headers.get("Content-Range", "")).startswith(f"bytes {have}-")
