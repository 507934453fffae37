"""The page in headless Chromium: events arrive, the report stands beneath, nothing is said on the console."""

import subprocess

import pytest

from report.made_runs import HOSTILE, make_run
from report.test_browser import CHROMIUM, FLAGS, SHOTS, console
from report.watch.test_server import serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium (.ci/run does)"),
]


@pytest.mark.parametrize("width", [500, 1280])  # Chromium has no narrower window
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_follows(width, theme, tmp_path):
    """The line of the run is there, its hostile name is text; screenshots go where people look at them."""
    path = make_run(tmp_path / HOSTILE.replace("/", "-"))
    SHOTS.mkdir(parents=True, exist_ok=True)
    with serving(path) as server:
        flags = [f"--window-size={width},900", "--timeout=3000", f"--user-data-dir={tmp_path / 'profile'}"]
        flags += ["--blink-settings=preferredColorScheme=0"] * (theme == "dark")
        ask = [CHROMIUM, *FLAGS, "--enable-logging=stderr", *flags]
        shot = SHOTS / f"watch-{theme}-{width}.png"
        seen = subprocess.run([*ask, f"--screenshot={shot}", server.url], capture_output=True, text=True, timeout=200)
        dom = subprocess.run([*ask, "--dump-dom", server.url], capture_output=True, text=True, timeout=200)
    assert (seen.returncode, dom.returncode) == (0, 0), seen.stderr[-2000:]
    assert shot.stat().st_size > 10_000
    assert "<span>step 60</span>" in dom.stdout
    head = dom.stdout.partition('id="below"')[0]
    assert head.count("<figure>") == head.count("<svg") == 3  # loss, metric, ranks: not in the report alone
    assert "The report, drawn again" in dom.stdout
    assert "connecting" not in dom.stdout
    assert "<img src" not in dom.stdout
    assert console(seen) + console(dom) == []
