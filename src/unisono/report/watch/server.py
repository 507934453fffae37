"""A watched run as a page on loopback: progress by server-sent events, and the report beneath, drawn again as it grows.

Whoever knows the token may read; nothing can be written. The standard library's server, a thread for each connection.
"""

import hmac
import html
import json
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any, final
from urllib.parse import parse_qs, urlsplit

from unisono.errors import ConfigError, UnisonoError
from unisono.report.page import render
from unisono.report.sources import sections_of
from unisono.report.svg import DARK, LIGHT, STYLE
from unisono.report.watch.head import head_of, rows_of
from unisono.report.watch.state import WatchedRun

_REPORT_EVERY_S = 5.0
_TIMES_AS_LONG = 10
"""So many times what the last report took passes before the next: a long run's takes seconds of the run's own cores."""
_PAGE = resources.files("unisono.report.watch").joinpath("watch.html")


@final
class WatchServer(ThreadingHTTPServer):
    """Serves the page until it is closed; on loopback, to those whose request brings the token. Port 0 is any that is
    free.

    Raises:
        ConfigError: The port is taken, or needs other rights.
    """

    daemon_threads = True

    def __init__(self, paths: Sequence[Path], port: int, token: str, every_s: float) -> None:
        self.paths, self.token, self.every_s = list(paths), token, every_s
        self.ending, self.took_s = threading.Event(), 0.0
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"expected a free port for --web, got {port}: {error}. Hint: --web alone takes any free one."
            ) from error

    @property
    def report_every_s(self) -> float:
        """Return how many seconds are between two reports."""
        return max(_REPORT_EVERY_S, _TIMES_AS_LONG * self.took_s)

    @property
    def url(self) -> str:
        """Return where the page is, with its token."""
        return f"http://127.0.0.1:{self.server_address[1]}/?token={self.token}"


@final
class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    protocol_version = "HTTP/1.0"

    def log_message(self, *_: Any) -> None:
        """Say nothing: the terminal is not ours."""

    def do_GET(self) -> None:
        """Answer."""
        asked = urlsplit(self.path)
        token = parse_qs(asked.query).get("token", [""])[0]
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self.send_error(HTTPStatus.FORBIDDEN, "the address that unisono watch has printed ends in a token")
            return
        answer = {"/": self._frame, "/report": self._report, "/events": self._events}.get(asked.path)
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            answer()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the page was closed

    def _send(self, text: str, policy: str) -> None:
        content = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        self.wfile.write(content)

    def _frame(self) -> None:
        token = self.server.token
        title = html.escape(", ".join(path.resolve().name for path in self.server.paths))
        policy = (
            f"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{token}'; img-src data:; "
            "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        colours = [";".join(f"--{name}:{value}" for name, value in each.items()) for each in (LIGHT, DARK)]
        parts = {"TITLE": title, "TOKEN": token, "STYLE": STYLE, "LIGHT": colours[0], "DARK": colours[1]}
        page = _PAGE.read_text()
        for name, part in parts.items():
            page = page.replace(f"@{name}@", part)
        self._send(page, policy)

    def _report(self) -> None:
        began = time.monotonic()
        try:
            page = render(*sections_of(self.server.paths, optional=self.server.paths))
        except UnisonoError as error:  # a file is half written, or too much for one page
            page = f"<!doctype html><title>unisono</title><p>{html.escape(str(error))}</p>"
        self.server.took_s = time.monotonic() - began
        self._send(page, "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'")

    def _events(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        runs = [WatchedRun(path) for path in self.server.paths]
        drawn, is_new = time.monotonic(), False
        while not self.server.ending.is_set():
            redraw = is_new and time.monotonic() >= drawn + self.server.report_every_s
            if redraw:
                drawn, is_new = time.monotonic(), False
            told = {"table": rows_of(runs), "runs": [head_of(run, len(runs)) for run in runs], "redraw": redraw}
            self.wfile.write(f"data: {json.dumps(told)}\n\n".encode())
            self.server.ending.wait(self.server.every_s)
            polled = [run.poll() for run in runs]
            is_new = is_new or any(polled)
