"""Files are exactly the pinned ones, fetched once per machine, or an error says what to do."""

import hashlib
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from unisono.data.files.fetch import (
    Pin,
    check_pin,
    download,
    file_lock,
    locate,
    sha256_file,
)
from unisono.environment import default_cache
from unisono.errors import ConfigError, DataError

CONTENT = bytes(range(256)) * 400
PIN = Pin(sha256=hashlib.sha256(CONTENT).hexdigest(), size_bytes=len(CONTENT))


class Mirrors(http.server.BaseHTTPRequestHandler):
    """Serves good/, wrong/, short/, long/; 404 for the rest; counts requests."""

    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        kind = self.path.split("/")[1]
        bodies = {"good": CONTENT, "wrong": CONTENT[::-1], "short": CONTENT, "long": CONTENT * 3}
        if kind not in bodies:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(bodies[kind])))
        self.end_headers()
        body = bodies[kind][:1000] if kind == "short" else bodies[kind]
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """A real HTTP server on the loopback interface: its address and the paths asked for so far."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    seen: list[str] = []
    handler = type("Handler", (Mirrors,), {"requests": seen})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", seen
        running.shutdown()
        thread.join()


def test_second_mirror_answers_when_the_first_has_not_the_file(server, tmp_path):
    """A 404 on the first mirror leads to the second, and a second call asks no server."""
    base, seen = server
    urls = [f"{base}/none/", f"{base}/good/"]
    for _ in range(2):
        path = download("file.gz", PIN, urls=urls, cache=tmp_path)
        assert path == tmp_path / "file.gz"
        assert path.read_bytes() == CONTENT
    assert seen == ["/none/file.gz", "/good/file.gz"]


@pytest.mark.parametrize("kind", ["wrong", "short", "long", "none"])
def test_bad_delivery_leaves_no_file(server, tmp_path, kind):
    """Wrong bytes, a cut connection, endless bytes and 404 end in one DataError; only what can go on is kept."""
    base, seen = server
    with pytest.raises(DataError, match=r"Hint: fetch file.gz on a machine with internet") as caught:
        download("file.gz", PIN, urls=[f"{base}/{kind}/"], cache=tmp_path, pause_s=0.01)
    assert f"{base}/{kind}/file.gz" in str(caught.value)
    assert str(tmp_path / "file.gz") in str(caught.value)
    assert len(seen) == 2
    assert ("the server sends more" in str(caught.value)) == (kind == "long")
    left = {".file.gz.lock", ".file.gz.part"} if kind == "short" else {".file.gz.lock"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_without_mirrors_nothing_is_asked(tmp_path):
    """Offline: what is there is used; what is not is named, with its place."""
    with pytest.raises(DataError, match=r"(?s)f: expected .* found nothing, and no download was allowed.*put it at"):
        download("f", PIN, urls=(), cache=tmp_path)
    (tmp_path / "f").write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match="found another file"):
        download("f", PIN, urls=(), cache=tmp_path)
    (tmp_path / "f").write_bytes(CONTENT)
    assert download("f", PIN, urls=(), cache=tmp_path) == tmp_path / "f"


def test_offline_says_where_to_put_the_file(tmp_path):
    """Without a reachable mirror the error names the file, its checksum and its place in the cache."""
    with pytest.raises(DataError) as caught:
        download("a.gz", PIN, urls=["http://127.0.0.1:9/"], cache=tmp_path, pause_s=0, timeout_s=2)
    assert PIN.sha256 in str(caught.value)
    assert f"put it at {tmp_path / 'a.gz'}" in str(caught.value)


def test_damaged_cache_is_downloaded_again(server, tmp_path):
    """A cached file with other bytes is replaced, never used."""
    base, _ = server
    (tmp_path / "f").write_bytes(CONTENT[:-1])
    assert download("f", PIN, urls=[f"{base}/good/"], cache=tmp_path).read_bytes() == CONTENT


def test_two_processes_download_once(server, tmp_path):
    """Processes that start together share one download."""
    base, seen = server
    code = (
        "import sys; from pathlib import Path; from unisono.data.files.fetch import Pin, download;"
        f"pin = Pin(sha256={PIN.sha256!r}, size_bytes={PIN.size_bytes});"
        f"download('f', pin, urls=[{base + '/good/'!r}], cache=Path({str(tmp_path)!r}))"
    )
    starters = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [starter.wait(60) for starter in starters] == [0, 0]
    assert seen == ["/good/f"]


def test_users_directory_must_hold_the_pinned_bytes(tmp_path):
    """A missing, cut or changed file in the user's directory is named with expected and found."""
    for name, content in {"good": CONTENT, "cut": CONTENT[:-7], "changed": CONTENT[::-1]}.items():
        (tmp_path / name).write_bytes(content)
    ask = {"source": tmp_path, "urls": [], "cache": tmp_path / "unused"}
    assert locate({"good": PIN}, **ask) == {"good": tmp_path / "good"}
    with pytest.raises(DataError, match=r"102,400 bytes.*102,393 bytes.*cut short.*Hint: delete"):
        locate({"cut": PIN}, **ask)
    with pytest.raises(DataError, match=f"{PIN.sha256}.*not the original"):
        locate({"changed": PIN}, **ask)
    with pytest.raises(DataError, match=r"expected a file gone, found changed, cut, good. Hint: put gone into"):
        locate({"gone": PIN}, **ask)
    assert not (tmp_path / "unused").exists()


def test_users_file_stands_for_the_only_name(tmp_path):
    """One file may be passed as itself under any name; several files need a directory."""
    path = tmp_path / "renamed"
    path.write_bytes(CONTENT)
    assert locate({"a": PIN}, source=path, urls=[], cache=tmp_path) == {"a": path}
    with pytest.raises(DataError, match="expected a directory that holds a, found a file"):
        locate({"a": PIN, "b": PIN}, source=path, urls=[], cache=tmp_path)
    with pytest.raises(DataError, match="found nothing"):
        locate({"a": PIN}, source=tmp_path / "nowhere", urls=[], cache=tmp_path)


def test_pin_and_sum_of_a_missing_file(tmp_path):
    """A pin that cannot be one is a ConfigError; an unreadable file is a DataError."""
    with pytest.raises(ConfigError, match="64 lower-case"):
        Pin(sha256="ABC", size_bytes=1)
    with pytest.raises(ConfigError, match="size_bytes as a whole number of bytes from 0"):
        Pin(sha256="0" * 64, size_bytes=-1)
    with pytest.raises(DataError, match="No such file"):
        sha256_file(tmp_path / "gone")
    with pytest.raises(DataError, match="No such file"):
        check_pin(tmp_path / "gone", PIN)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/unisono"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/unisono"),
        ({"HOME": "/h"}, "/h/.cache/unisono"),
    ],
)
def test_default_cache(environ, expected):
    """The cache follows the XDG rules from the mapping that is passed in."""
    assert default_cache(environ) == Path(expected)
    assert default_cache({}).is_absolute()


def test_lock_is_exclusive_ends_with_its_holder_and_times_out(tmp_path):
    """Another process waits for the lock, for a limited time; the death of the holder frees it."""
    lock = tmp_path / "deep" / "lock"
    code = (
        "import sys, time; from pathlib import Path; from unisono.data.files.fetch import file_lock\n"
        f"with file_lock(Path({str(lock)!r})):\n print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DataError, match="still held"), file_lock(lock, timeout_s=0.1):
            pass
        holder.kill()
        holder.wait()
    with file_lock(lock, timeout_s=5):
        pass


def test_cache_that_cannot_be_written_is_explained(tmp_path):
    """A file in the place of the cache directory, or a link in place of the lock, is a DataError."""
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DataError, match="pass another cache directory"),
        file_lock(tmp_path / "file" / "lock"),
    ):
        pass
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(DataError, match="pass another cache directory"), file_lock(tmp_path / "link"):
        pass


def test_data_sources_import_no_torch():
    """The launcher can prepare data without loading torch."""
    names = "files.archive files.cache files.fetch files.idx sets.digits sets.imdb sets.mnist sets.text"
    code = "".join(f"import unisono.data.{name};" for name in names.split())
    subprocess.run([sys.executable, "-c", code + "import sys; sys.exit('torch' in sys.modules)"], check=True)
