"""An interrupted download goes on where it stopped, with servers that know ranges and with those that do not."""

import http.server
import threading

import pytest

from unisono.data.files.resume import fetch_resuming

CONTENT = bytes(range(256)) * 2000


class Server(http.server.BaseHTTPRequestHandler):
    """Knows ranges unless told otherwise; breaks off after `stop` bytes."""

    ranges, stop, extra = True, None, b""
    asked: list[str | None] = []  # noqa: RUF012

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.asked.append(wanted)
        start = int(wanted[6:-1]) if wanted and self.ranges else 0
        body = CONTENT[start:] + self.extra
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        if self.stop is None:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.stop])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served():
    handler = type("Handler", (Server,), {"asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield handler, f"http://127.0.0.1:{server.server_port}/x"
        server.shutdown()
        thread.join()


def fetch(url, part):
    fetch_resuming(url, part, size_bytes=len(CONTENT), timeout_s=5)


@pytest.mark.parametrize("ranges", [True, False])
def test_it_goes_on_after_a_break(served, tmp_path, ranges):
    """The second attempt asks for the rest; a server that sends all again is taken at its word."""
    handler, url = served
    handler.ranges, handler.stop = ranges, 100_000
    with pytest.raises(OSError, match="broke off after 100,000"):
        fetch(url, tmp_path / "part")
    handler.stop = None
    fetch(url, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == CONTENT
    assert handler.asked == [None, "bytes=100000-"]
    fetch(url, tmp_path / "part")
    assert len(handler.asked) == 2, "a whole file was asked for again"


def test_too_many_bytes_are_refused(served, tmp_path):
    """No server can fill the disk, and what it sent is not kept; nor is an old part that is too long."""
    handler, url = served
    handler.extra = b"more"
    with pytest.raises(ValueError, match="sends more"):
        fetch(url, tmp_path / "part")
    assert not (tmp_path / "part").exists()
    handler.extra = b""
    (tmp_path / "part").write_bytes(CONTENT + b"x")
    fetch(url, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == CONTENT
