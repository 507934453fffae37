"""The page in headless Chromium: loads in silence, charts are seen, hostile names stay inert, phones and paper too.

Screenshots go to ``build/report``, to be looked at by people. What a browser computes is asked by a script in a copy of
the page without its security policy.
"""

import json
import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
from PIL import Image

from report.made_runs import HOSTILE, make_run, write_study
from scaling.made import study
from unisono.experiments.past.audit import Audit, Segment
from unisono.report.page import write_page, write_sections
from unisono.report.past_sections import sections_of_audit
from unisono.report.picture import draw_section
from unisono.report.scaling_section import scaling_sections

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium (.ci/run does)"),
]
SHOTS = Path(__file__).parents[2] / "build" / "report"
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--hide-scrollbars")  # fmt: skip
PROBE = """<script>
const seen = e => { const b = e.getBoundingClientRect(); return b.width > 50 && b.height > 30; };
const point = document.querySelector('.pt'), tip = point && point.querySelector('.tip');
const before = tip && getComputedStyle(tip).display;
if (point) point.focus();
document.title = JSON.stringify({
  charts: [...document.querySelectorAll('svg.chart')].filter(seen).length,
  all: document.querySelectorAll('svg.chart').length,
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  inner: window.innerWidth,
  background: getComputedStyle(document.body).backgroundColor,
  font: Math.min(...[...document.querySelectorAll('svg text.tick')].map(t => t.getBoundingClientRect().height)),
  tip: [before, tip && getComputedStyle(tip).display],
  fill: getComputedStyle(document.querySelector('.dot.c0')).fill,
  tabs: [...document.querySelectorAll('a[href],summary,[tabindex="0"]')].length,
});
</script>"""


def browse(page: Path, profile: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Open a page in a fresh profile; standard error holds what the page says on its console."""
    asked = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--enable-logging=stderr", *flags, page.as_uri()]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def console(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def titled(page: Path, profile: Path, *flags: str) -> str:
    return re.search(r"<title>(.*?)</title>", browse(page, profile, "--dump-dom", *flags).stdout, re.S).group(1)


def probe(page: Path, profile: Path, *flags: str) -> dict:
    """Ask the browser about a copy of the page."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", page.read_text())
    copy = page.with_name(f"probe-{page.name}")
    copy.write_text(text.replace("</body>", PROBE + "</body>"))
    return json.loads(titled(copy, profile, *flags).replace("&amp;", "&").replace("&lt;", "<"))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with two runs, one with a hostile name and an interruption, and a scaling study."""
    place = tmp_path_factory.mktemp("pages")
    hostile = HOSTILE.replace("/", "\N{DIVISION SLASH}")
    runs = [make_run(place / "calm"), make_run(place / hostile, launches=((1, 35), (31, 60)), slow=1, name=HOSTILE)]
    write_page([*runs, write_study(place / "scaling.json", study(target=HOSTILE))], place / "report.html")
    SHOTS.mkdir(parents=True, exist_ok=True)
    return place / "report.html"


def shot(page: Path, profile: Path, name: str, width: int, height: int, *flags: str) -> Image.Image:
    file = SHOTS / f"{name}.png"
    browse(page, profile, f"--window-size={width},{height}", f"--screenshot={file}", *flags)
    with Image.open(file) as image:
        return image.convert("RGB")


def share(image: Image.Image, colour: tuple[int, int, int]) -> float:
    """Return which part of a picture has a colour."""
    found = image.getcolors(1 << 24)
    near = sum(count for count, other in found if all(abs(a - b) < 12 for a, b in zip(other, colour, strict=True)))
    return near / (image.width * image.height)


def test_it_loads_without_a_word_and_charts_are_seen(page, tmp_path):
    """No console message, every chart has a size, lines and bars are on the picture in their colours."""
    done = browse(page, tmp_path / "p", "--dump-dom")
    assert console(done) == []
    found = probe(page, tmp_path / "q", "--window-size=1280,900")
    assert found["charts"] == found["all"] >= 14
    assert found["tip"] == ["none", "block"]  # shown when a point is focused or under the pointer
    image = shot(page, tmp_path / "r", "light", 1280, 5000)
    assert share(image, (255, 255, 255)) > 0.3
    for colour in ((0x00, 0x72, 0xB2), (0xC0, 0x7A, 0x00), (0x00, 0x8A, 0x66)):
        assert share(image, colour) > 0.0003


def test_console_messages_would_be_seen(tmp_path):
    """The control of the silence: an error, and something that the security policy blocks."""
    loud = tmp_path / "loud.html"
    loud.write_text("<title>x</title><script>console.error('ouch'); nothing.here()</script>")
    assert len(console(browse(loud, tmp_path / "p", "--dump-dom"))) >= 2


def test_hostile_names_do_nothing(page, tmp_path):
    """The title is ours; in a page that does not escape and has no policy the same name takes it over."""
    assert titled(page, tmp_path / "p", "--virtual-time-budget=2000").startswith("Report: ")
    bad = tmp_path / "bad.html"
    bad.write_text(f"<title>safe</title><body>{HOSTILE.replace('alert(1)', '0')}")  # a dialogue would wait
    assert titled(bad, tmp_path / "q", "--virtual-time-budget=2000") == "owned"


def test_dark_phone_and_paper(page, tmp_path):
    """Dark background with bright lines; nothing wider than a phone, and text that can be read; a PDF."""
    light = probe(page, tmp_path / "l", "--window-size=1280,900")
    dark = probe(page, tmp_path / "d", "--window-size=1280,900", "--blink-settings=preferredColorScheme=0")
    assert light["background"] == "rgb(255, 255, 255)"
    assert dark["background"] == "rgb(22, 22, 24)"
    assert light["fill"] != dark["fill"]
    shot(page, tmp_path / "s", "dark", 1280, 5000, "--blink-settings=preferredColorScheme=0")
    phone = probe(page, tmp_path / "m", "--window-size=500,900")
    assert phone["wide"] <= 0, phone
    assert phone["font"] >= 9, phone
    assert phone["tabs"] > 20  # every table and every list of values can be reached by keyboard
    shot(page, tmp_path / "t", "phone", 500, 6000)
    browse(page, tmp_path / "u", f"--print-to-pdf={SHOTS / 'paper.pdf'}")
    assert (SHOTS / "paper.pdf").read_bytes().startswith(b"%PDF")


def test_it_needs_nothing_from_anywhere(page, tmp_path):
    """A page that is moved away alone, with every name unresolvable, is the same page."""
    alone = tmp_path / "alone.html"
    alone.write_bytes(page.read_bytes())
    flags = ("--window-size=900,2000", "--host-resolver-rules=MAP * ~NOTFOUND")
    there = shot(page, tmp_path / "p", "alone", 900, 2000)
    here = shot(alone, tmp_path / "q", "alone", 900, 2000, *flags[1:])
    assert there.tobytes() == here.tobytes()


def test_an_audit_is_shown_in_silence(tmp_path):
    """Finding and segments are seen, the finding in its colour; a program's hostile words stay inert; phones too."""
    pieces = [Segment(start=0, last=20, is_drawn=True, problem=f"step 7 of {HOSTILE}"), Segment(start=20, last=46)]
    found = Audit(
        run=HOSTILE, commitment="e6" * 32, is_published=True, fingerprint="10" * 32, steps=46, problems=[],
        segments=pieces, drifts=[HOSTILE], chances={"0.5": 0.5},
    )  # fmt: skip
    asked = asdict(found) | {"steps_computed": found.steps_computed}
    write_sections("Audit", sections_of_audit(asked), tmp_path / "audit.html")
    assert console(browse(tmp_path / "audit.html", tmp_path / "p", "--dump-dom")) == []
    assert titled(tmp_path / "audit.html", tmp_path / "q", "--virtual-time-budget=2000") == "Audit"
    SHOTS.mkdir(parents=True, exist_ok=True)
    image = shot(tmp_path / "audit.html", tmp_path / "r", "audit", 500, 900)
    assert share(image, (255, 255, 255)) > 0.5
    assert share(image, (0xB0, 0x00, 0x20)) > 0.001  # an alarm


def test_a_picture_is_shown_in_silence(tmp_path):
    """The SVG file alone: no console message, lines and bars in their colours, all of its texts inside."""
    picture = tmp_path / "scaling.svg"
    SHOTS.mkdir(parents=True, exist_ok=True)
    draw_section(scaling_sections([study(target=HOSTILE)])[0], picture, most=2)
    assert console(browse(picture, tmp_path / "p", "--dump-dom")) == []
    image = shot(picture, tmp_path / "q", "picture", 1120, 700)
    assert share(image, (255, 255, 255)) > 0.5
    for colour in ((0x00, 0x72, 0xB2), (0xC0, 0x7A, 0x00), (0xB0, 0x00, 0x20)):
        assert share(image, colour) > 0.000005  # of red there is one digit
    text = picture.read_text()
    probe = tmp_path / "probe.html"
    probe.write_text(
        f"<meta charset=utf-8><title>x</title><body>{text}<script>"
        "const s=document.querySelector('svg').getBoundingClientRect();"
        "document.title=[...document.querySelectorAll('text:not(.tip)')].filter(t=>{const b=t.getBoundingClientRect();"
        "return b.left<s.left||b.right>s.right||b.top<s.top||b.bottom>s.bottom}).map(t=>t.textContent).join()</script>"
    )
    assert titled(probe, tmp_path / "r") == ""
