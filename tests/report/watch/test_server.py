"""The page on loopback: whoever has the token sees it grow, nobody else sees anything."""

import json
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from report.made_runs import HOSTILE, make_run
from unisono.errors import ConfigError
from unisono.report.watch.head import head_of
from unisono.report.watch.server import WatchServer
from unisono.report.watch.state import WatchedRun


@contextmanager
def serving(*paths):
    with WatchServer(paths, 0, "secret", 0.05) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.ending.set()
            server.shutdown()
            thread.join()


def ask(server, path, token="secret"):
    where = f"http://127.0.0.1:{server.server_address[1]}{path}?token={token}"
    return urllib.request.urlopen(where, timeout=20)


def test_the_token_is_needed(tmp_path):
    """Without the right one there is no answer but 403, for every address; a strange address is 404."""
    with serving(make_run(tmp_path / "run")) as server:
        for path in ("/", "/report", "/events", "/etc/passwd"):
            for token in ("", "secre", "secrets", "%C3%A9"):
                with pytest.raises(urllib.error.HTTPError, match="403"):
                    ask(server, path, token)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(server, "/etc/passwd")
        assert server.url.startswith("http://127.0.0.1:")


def test_it_follows(tmp_path):
    """An event tells where the run is; a step that comes is in a later one; the report is a page of ours."""
    path = make_run(tmp_path / "run")
    with serving(path) as server:
        with ask(server, "/events") as events:
            first = json.loads(events.readline().removeprefix(b"data: "))
            (told,) = first["runs"]
            assert (told["name"], told["state"], told["verdict"]) == ("run", "finished", "loss from 0.5858 to 0.03613")
            assert told["facts"][:3] == ["step 60", "epoch 1", "mean 1,600 samples/s"]
            assert (told["tone"], told["notes"]) == ("good", [])
            titles = ["Loss", "test_accuracy: 0.9833", "Where a step goes, rank by rank"]
            assert [each["title"] for each in told["drawings"]] == titles  # as the terminal shows
            assert first["table"] == []
            line = {"step": 61, "epoch": 0, "num_samples": 64, "loss": (0.5).hex()}
            with (path / "ledger.jsonl").open("a") as ledger:
                ledger.write(json.dumps(line) + "\n")
            for _ in range(200):
                told = events.readline()
                if b"step 61" in told:
                    break
            assert b"step 61" in told
        page = ask(server, "/report").read().decode()
        assert "Report: run" in page or "Run run" in page
        assert "<script" not in page


def test_several_runs(tmp_path):
    """A table with a line for each, as in the terminal; of many, no drawings of each."""
    paths = [make_run(tmp_path / f"run{number}", steps=30, launches=((1, 30),)) for number in range(5)]
    with serving(*paths) as server, ask(server, "/events") as events:
        told = json.loads(events.readline().removeprefix(b"data: "))
    assert told["table"][0] == ["run", "state", "step", "loss", "samples/s", "left", "test_accuracy"]
    assert told["table"][5] == ["run4", "finished", "30", "0.0667", "1,600", "-", "0.9667"]
    assert [run["drawings"] for run in told["runs"]] == [[]] * 5


def test_who_is_gone_or_slow_is_named_at_its_bar(tmp_path):
    """And only phases that there are have a part of it; before the first step nothing is drawn."""
    run = WatchedRun(make_run(tmp_path / "run", slow=1, steps=90, launches=((1, 90),)))
    drawn = head_of(run)["drawings"][-1]["svg"]
    assert ">rank 1 slow</text>" in drawn and ">rank 0</text>" in drawn
    assert "checkpoint" in drawn and "evaluate" not in drawn
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "run.lock").touch()
    assert head_of(WatchedRun(tmp_path / "new"))["drawings"] == []


def test_a_stopped_run(tmp_path):
    """Its head says so, with the command that goes on; nothing of it is on track."""
    path = make_run(tmp_path / "run", last_step=120)
    result = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(result | {"finished": False}))
    (path / "run.toml").touch()
    with serving(path) as server, ask(server, "/events") as events:
        (told,) = json.loads(events.readline().removeprefix(b"data: "))["runs"]
    assert (told["state"], told["tone"]) == ("stopped", "note")
    assert told["verdict"].startswith("saved after step 60 of 120, the same command goes on; ")
    assert f"next: unisono train --config {path} --out {path}" in told["about"]


def test_hostile_names(tmp_path):
    """A name of a run is text, and a run that cannot be reported is told, not a traceback."""
    path = make_run(tmp_path / HOSTILE.replace("/", "-"))
    with serving(path) as server:
        frame = ask(server, "/").read().decode()
        assert frame.count("<script") == 1
        assert "onload=alert" not in frame.replace("&lt;svg onload=alert(1)&gt;", "")
        (path / "score.json").write_text("rubbish")
        assert "score.json" in ask(server, "/report").read().decode()


def test_a_long_report_is_drawn_rarely(tmp_path):
    """At most a tenth of the time is spent on reports; a short one comes every five seconds."""
    with serving(make_run(tmp_path / "run")) as server:
        assert server.report_every_s == 5
        ask(server, "/report").read()
        assert server.took_s > 0
        server.took_s = 8.0
        assert server.report_every_s == 80


def test_a_taken_port(tmp_path):
    """It is refused in one line."""
    with (
        serving(make_run(tmp_path / "run")) as server,
        pytest.raises(ConfigError, match=r"expected a free port for --web, got \d+: .*Hint: --web alone takes any"),
    ):
        WatchServer([tmp_path / "run"], server.server_address[1], "other", 1.0)
