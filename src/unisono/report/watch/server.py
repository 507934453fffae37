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
from pathlib import Path
from typing import Any, final
from urllib.parse import parse_qs, urlsplit

from unisono.errors import ConfigError, UnisonoError
from unisono.report.page import render
from unisono.report.sources import sections_of
from unisono.report.watch.state import WatchedRun
from unisono.report.watch.told import ended, events, held_up, progress, room, setup, values, verdict

_REPORT_EVERY_S = 5.0
_TIMES_AS_LONG = 10
"""So many times what the last report took passes before the next: a long run's takes seconds of the run's own cores."""
_TONES = {"bold red": "bad", "bold green": "good", "bold yellow": "note"}
_FRAME = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,"><style>
:root{{--bad:#b00020;--good:#1b6e3c;--note:#7a5200}}
@media (prefers-color-scheme:dark){{:root{{--bad:#ff8a80;--good:#7ddc9b;--note:#ffd180}}}}
html,body{{height:100%;margin:0}}body{{display:flex;flex-direction:column;font:16px/1.5 system-ui,sans-serif}}
#now{{padding:.6rem 1rem;border-bottom:1px solid #8888;overflow:auto;overflow-wrap:anywhere;max-height:45%}}
#now>section+section{{border-top:1px solid #8884;margin-top:.5rem;padding-top:.5rem}}
progress{{width:100%;display:block}}
.facts{{font-variant-numeric:tabular-nums}}.facts span{{display:inline-block;margin-right:1.2em}}
.faint{{opacity:.7;font-size:.9em}}.note{{color:var(--note)}}.bad{{color:var(--bad)}}.good{{color:var(--good)}}
iframe{{flex:1;border:0;width:100%;min-height:0}}</style></head><body><div id="now" role="status">connecting</div>
<iframe title="report" src="report?token={token}"></iframe><script nonce="{token}">
const now=document.getElementById("now"),frame=document.querySelector("iframe"),title=document.title
const put=(to,name,text,of)=>{{const made=to.appendChild(document.createElement(name))
made.textContent=text;if(of)made.className=of;return made}}
const list=(to,words,of)=>{{const row=put(to,"div","",of);words.forEach(word=>put(row,"span",word))}}
const show=run=>{{const part=document.createElement("section"),top=put(part,"div","")
put(top,"b",run.name);put(top,"span",` ${{run.state}}: `);put(top,"b",run.verdict,run.tone)
if(run.share!==null){{const bar=put(part,"progress","");bar.max=1;bar.value=run.share}}
list(part,run.facts,"facts");list(part,run.about,"facts faint")
run.notes.forEach(note=>put(part,"div",note,"note"));return part}}
const redraw=()=>{{const view=frame.contentWindow,top=view.scrollY
const open=[...view.document.querySelectorAll("details")].map(each=>each.open)
frame.onload=()=>{{frame.contentDocument.querySelectorAll("details").forEach((each,at)=>each.open=open[at]??each.open)
frame.contentWindow.scrollTo(0,top)}};view.location.reload()}}
const source=new EventSource("events?token={token}")
source.onmessage=event=>{{const told=JSON.parse(event.data),known=told.runs.filter(run=>run.share!==null)
now.replaceChildren(...told.runs.map(show))
document.title=[...known.map(run=>run.state==="training"?Math.floor(100*run.share)+"%":run.state),title].join(" ")
if(told.redraw)redraw()}}
source.onerror=()=>{{now.textContent="the connection is lost; unisono watch has ended?"}}
</script></body></html>"""


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
        self._send(_FRAME.format(title=title, token=token), policy)

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
            told = {"runs": [_told(run) for run in runs], "redraw": redraw}
            self.wfile.write(f"data: {json.dumps(told)}\n\n".encode())
            self.server.ending.wait(self.server.every_s)
            polled = [run.poll() for run in runs]
            is_new = is_new or any(polled)


def _told(run: WatchedRun) -> dict[str, Any]:
    """Return what the page says of a run, above its report."""
    said, style = verdict(run)
    share = min(1.0, run.step / run.num_steps) if run.num_steps else None
    return {
        "name": run.name, "state": run.state, "verdict": said, "tone": _TONES.get(style, ""), "share": share,
        "facts": [*progress(run), *values(run)], "about": [setup(run), *ended(run), *room(run)],
        "notes": [*held_up(run), *events(run)],
    }  # fmt: skip
