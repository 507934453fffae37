"""The page as a file: self-contained, escaped, small; what is refused leaves nothing behind."""

import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cli.test_forecast import told
from report.made_runs import HOSTILE, make_run, write, write_study
from scaling.made import study, trial
from unisono.errors import ConfigError
from unisono.report.comparison.run_diff import compare_runs
from unisono.report.content import Section, Table, diverges, from_to, mean_of, rates_of
from unisono.report.page import MOST_BYTES, render, write_page
from unisono.report.run_view import read_run
from unisono.report.sources import sections_of
from unisono.report.watch.state import WatchedRun
from unisono.report.watch.told import events, setup
from unisono.system.processes import boot_id, look_at

VOID = {"meta", "link", "br", "line", "polyline", "polygon", "circle", "rect"}


class Reader(HTMLParser):
    """Collects elements, attributes and text; complains of what is not closed."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.num_unfolded = 0  # tables that need not be opened
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append(tag)
        self.num_unfolded += tag == "table" and "details" not in self.open

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text.append(data)


def read(page: str) -> Reader:
    """Parse a page and hold it to what every page must be."""
    reader = Reader(page)
    assert not {"script", "img", "iframe", "object", "form", "embed", "base"} & set(reader.tags)
    assert not [found for found in reader.attributes if found[1].startswith("on")]
    for tag, name, value in reader.attributes:
        if name in ("href", "src", "xlink:href"):
            assert value.startswith(("#", "data:,")), (tag, name, value)
    policy = next(value for tag, name, value in reader.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none';")
    assert "script-src" not in policy
    assert not re.search(r"url\(|@import|https?://", page.replace("http-equiv", ""))
    assert len(page.encode()) < MOST_BYTES
    assert ("html", "lang", "en") in reader.attributes
    svgs = reader.tags.count("svg")
    assert sum(found[:2] == ("svg", "aria-label") for found in reader.attributes) == svgs
    assert reader.tags.count("figcaption") == reader.tags.count("figure") == svgs
    ths = reader.tags.count("th")
    assert sum(found[:2] == ("th", "scope") for found in reader.attributes) == ths
    return reader


def page_of(*sources, out):
    write_page(list(sources), out)
    return out.read_text()


def test_a_run_on_one_page(tmp_path):
    """Curves, phases, stragglers, interruptions, checkpoints, environment, score, fingerprint."""
    run = make_run(tmp_path / "run", launches=((1, 35), (31, 60)), slow=1)
    text = " ".join(read(page_of(run, out=tmp_path / "r.html")).text)
    for expected in (
        "Loss", "test_accuracy", "Throughput", "rank by rank", "Stragglers", "0" * 64, "Finished after 60 steps",
        "Interrupted after step 35; launch 2 went on from step 31", "5 steps done again", "Checkpoints", "2.13.0+cpu",
        "settings.recipe", "slowest in", "Rank 1 is slow: 10.2 ms per replica, 32% above the other ranks' median",
    ):  # fmt: skip
        assert expected in text
    assert re.search(r"rank 1\s+10.2 ms\s+10.2 ms\s+100%", text)  # for one of its four replicas


def test_workers_that_came_and_went(tmp_path):
    """A run that went on live has one launch; the page says who died and who joined, and nothing where nobody did."""
    run = make_run(tmp_path / "run")
    assert "died" not in " ".join(read(page_of(run, out=tmp_path / "calm.html")).text)
    result = json.loads((run / "result.json").read_text()) | {"deaths": 2, "joins": 1, "released": 0}
    write(run / "result.json", result)
    told = " ".join(read(page_of(run, out=tmp_path / "r.html")).text)
    assert "2 (2 died, 1 joined)" in told and "No interruption. Of the workers, 2 died, 1 joined." in told


def without(run, rank, first, last):
    """Take a rank's steps from `first` to `last` out of a run's phases."""
    file = run / "phases" / f"rank-{rank}.jsonl"
    lines = [line for line in file.read_text().splitlines() if not first <= json.loads(line).get("step", 0) <= last]
    file.write_text("\n".join(lines) + "\n")


def test_a_worker_that_died_and_one_that_joined(tmp_path):
    """Each has its row with the steps of its stay, and the time line shows how many there were."""
    run = make_run(tmp_path / "run", workers=3)
    without(run, 1, 31, 60)
    without(run, 2, 1, 40)
    assert [(size, steps[0][0].step, steps[-1][0].step) for _, size, steps in read_run(run).workers()] == [
        (2, 1, 30), (1, 31, 40), (2, 41, 60)
    ]  # fmt: skip
    text = " ".join(read(page_of(run, out=tmp_path / "r.html")).text)
    for row in ("rank 0", "rank 1, to about step 30", "rank 2, from step 41", "2 workers: steps 1 to 30 of launch 1"):
        assert row in text


def test_what_the_end_of_a_killed_launch_does_not_say(tmp_path):
    """Ranks have written their last second to other steps; that nobody came or went shows no row of workers."""
    run = make_run(tmp_path / "run", launches=((1, 30), (21, 60)))
    file = run / "phases" / "rank-1.jsonl"
    lines = file.read_text().splitlines()
    del lines[26:31]  # steps 26 to 30 of the first launch
    file.write_text("\n".join(lines) + "\n")
    assert [(launch.number, size) for launch, size, _ in read_run(run).workers()] == [(1, 2), (2, 2)]
    assert "workers: steps" not in " ".join(read(page_of(run, out=tmp_path / "r.html")).text)


def test_who_leads_when_the_first_rank_has_died(tmp_path):
    """Its last step ends what is read of it; from there on the next one's checkpoints and evaluations count."""
    run = make_run(tmp_path / "run")
    whole = {record.step for record in read_run(run).led()}
    path = run / "phases" / "rank-0.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2]))
    led = read_run(run).led()
    assert {record.step for record in led} == whole and {record.rank for record in led} == {0, 1}
    assert len(led) == len(whole)


def test_the_last_second_of_a_killed_run(tmp_path):
    """What a killed rank has not written of its phases was done all the same: the checkpoint says so."""
    run = make_run(tmp_path / "run", launches=((1, 35), (46, 60)))
    told = " ".join(read(page_of(run, out=tmp_path / "r.html")).text)
    assert "Interrupted after step 45; launch 2 went on from step 46" in told
    assert "done again" not in told
    run = make_run(tmp_path / "killed", launches=((1, 32), (31, 60)), reached=37)  # the leader has found 37 lines
    told = " ".join(read(page_of(run, out=tmp_path / "r.html")).text)
    assert "Interrupted after step 37; launch 2 went on from step 31" in told and ", 7 steps done again" in told
    assert "launch 1: steps 1 to 37, 2 workers" in told
    assert "7 steps computed again" in next(events(WatchedRun(run)))


def test_runs_are_compared(tmp_path):
    """Side by side, with the first difference; equal runs are called equal."""
    one, same, other = (make_run(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    text = " ".join(read(page_of(one, same, other, out=tmp_path / "r.html")).text)
    assert "a and b are equal, bit for bit." in text
    assert "c and a differ from step 1 on" in text
    assert "Loss of all runs" in text and "Loss of all runs by time" in text and "test_accuracy of all runs" in text
    assert re.search(r"Settings that differ\s+setting\s+a\s+b\s+c\s+seed\s+0\s+0\s+1\s", text)
    assert re.search(r"From [\d.]+ \([abc]\) to [\d.]+ \([abc]\): the mean loss of the last steps", text)
    equal = " ".join(read(page_of(one, same, out=tmp_path / "s.html")).text)
    assert re.search(r"The same in all runs: [\d.]+, the mean loss of the last steps", equal)
    assert re.search(r"samples a second in the median step", text)


def test_several_runs_in_words(tmp_path):
    """One that ends sooner does not differ; a setting explains a difference; a title has room for four names."""
    base = make_run(tmp_path / "a")
    short = make_run(tmp_path / "b", steps=20, launches=((1, 20),), result=False)
    other = make_run(tmp_path / "c", seed=10**9)
    write(short / "result.json", {"finished": False, "fingerprint": "ab" * 32, "steps": 20})
    title, (section, *_) = sections_of([base, short, other, *(make_run(tmp_path / name) for name in "de")])
    told = [remark.text for remark in section.findings]
    assert told[:2] == ["a, d and e are equal, bit for bit.", "a and b are equal as far as both go: b to step 20."]
    assert "c and a differ from step 1 on: seed: 0 -> 1000000000" in told
    assert "(c): the mean loss" in section.charts[0].finding and "to 1e+09 (c)" in section.charts[0].finding
    assert [row[-1] for row in section.tables[0].rows][:2] == ["0" * 16, "not finished"]
    assert title == "Report: a, b, c, and 2 more"


def test_runs_of_one_score_are_compared_with_each_other(tmp_path):
    """Whichever stands first on the page; one that differs within them is named, and so is what sets groups apart."""
    runs = [make_run(tmp_path / "a", seed=1), *(make_run(tmp_path / name) for name in "bc")]
    runs += [make_run(tmp_path / "d", steps=20, launches=((1, 10), (11, 20)), result=False)]
    runs += [make_run(tmp_path / "e", result=False), make_run(tmp_path / "f")]
    lines = (runs[-1] / "ledger.jsonl").read_text().splitlines()
    lines[39] = lines[39].replace('"epoch": 0', '"epoch": 1')
    (runs[-1] / "ledger.jsonl").write_text("\n".join([*lines, ""]))
    section = sections_of(runs)[1][0]
    assert [remark.text for remark in section.findings][:4] == [
        "b and c are equal, bit for bit.",
        "b, d and e are equal as far as all go: e to step 60; d to step 20.",
        "f and b differ from step 40 on: epoch: 0 -> 1",
        "b and a differ from step 1 on: seed: 1 -> 0",
    ]
    wall, speed = section.tables[0].head.index("wall"), section.tables[0].head.index("samples/s")
    _, finished, _, resumed, *_ = section.tables[0].rows
    assert (finished[wall], finished[speed]) == ("4.2 s", "1,600")
    assert (resumed[wall], resumed[speed]) == ("1.9 s", "673")  # of both launches, by their steps


def test_other_data_is_said(tmp_path):
    """Runs on unlike data are drawn all the same, with a sentence; of equal data there is none."""
    run, other = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    assert "other data" not in page_of(run, other, out=tmp_path / "r.html")
    changed = json.loads((other / "score.json").read_text())
    write(other / "score.json", changed | {"data": {"num_samples": 9, "fingerprint": "ff"}})
    told = " ".join(read(page_of(run, other, out=tmp_path / "r.html")).text)
    assert "b was trained on other data than a (b on 9 samples, a on 1,437 samples): two jobs, not one." in told
    assert "Loss of all runs" in told
    write(other / "score.json", changed | {"data": "none"})
    assert "b on data of unknown size" in " ".join(read(page_of(run, other, out=tmp_path / "r.html")).text)


def test_curves_come_first(tmp_path):
    """On a run's page the curves of loss and scores stand above all tables; on a study's the table is first."""
    page = page_of(make_run(tmp_path / "run"), out=tmp_path / "r.html")
    assert page.index(">Loss<") < page.index(">test_accuracy<") < page.index("In short") < page.index("Stragglers")
    page = page_of(write_study(tmp_path / "scaling.json", study()), out=tmp_path / "s.html")
    assert page.index("<table") < page.index("<figure")


def test_findings_come_first_and_tables_are_folded(tmp_path):
    """What a run has come to stands above its charts; every table of it has to be opened."""
    page = page_of(make_run(tmp_path / "run"), out=tmp_path / "r.html")
    finished, fingerprint = "Finished after 60 steps, with test_accuracy 0.97.", f"final weights: {0:064x}"
    assert page.index(finished) < page.index(fingerprint) < page.index("<figure>") < page.index("In short")
    assert "Stragglers" in page
    assert read(page).num_unfolded == 0


def test_long_curves_are_smoothed(tmp_path):
    """The mean of many steps over the pale line of each; few steps are drawn as they are."""
    (section,) = sections_of([make_run(tmp_path / "run", steps=400)])[1]
    assert section.charts[0].values.head == ["step", "mean of 11 steps"]
    assert ">lowest and highest of 3 steps</text>" in section.charts[0].drawing.svg()
    assert "loss, on a logarithmic scale" in section.charts[0].drawing.svg()
    (section,) = sections_of([make_run(tmp_path / "short", steps=60)])[1]
    assert section.charts[0].values.head == ["step", "loss of the step's batch"]


def test_scaling_on_one_page(tmp_path):
    """Table, charts, why it flattens, the label for too many workers, and the fingerprint."""
    text = " ".join(read(page_of(write_study(tmp_path / "scaling.json", study()), out=tmp_path / "r.html")).text)
    for expected in ("4 (more than cores)", "beyond the ideal", "One fingerprint on 1, 2, 4 workers", "Speed-up"):
        assert expected in text
    differing = study(trial(1, 0.08), trial(2, 0.05, fingerprint="g"))
    text = " ".join(read(page_of(write_study(tmp_path / "s.json", differing), out=tmp_path / "r.html")).text)
    assert "2 different fingerprints, where one is promised" in text


def test_a_forecast_on_one_page(tmp_path):
    """What was assumed, the best strategy; what an earlier version has simulated beside it is passed over."""
    older = {"simulated": [{"ranks": 2, "algorithm": "ring", "formula_s": 1.0, "simulated_s": 1.0}]}
    forecast = write(tmp_path / "f.json", told("--ranks", "1..16", "--mtbf", "50000h") | older)
    text = " ".join(read(page_of(forecast, out=tmp_path / "r.html")).text)
    for expected in ("strong scaling to 16 ranks", "machine.node_size", "save every"):
        assert expected in text


def test_hostile_names_are_text(tmp_path):
    """In directory names, settings, metrics, environment, target and command: shown, never markup."""
    run = make_run(tmp_path / HOSTILE.replace("/", "\N{DIVISION SLASH}"), name=HOSTILE, more={HOSTILE: HOSTILE})
    for name in ("environment", "result"):
        found = json.loads((run / f"{name}.json").read_text())
        found |= {HOSTILE: HOSTILE, "metrics": {HOSTILE: 0.5}} if name == "result" else {HOSTILE: [HOSTILE]}
        write(run / f"{name}.json", found)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 61, "epoch": 0, "values": {HOSTILE: 1.0}}) + "\n")
    hostile = study(target=HOSTILE, command=HOSTILE, environment={HOSTILE: HOSTILE})
    sources = [run, write_study(tmp_path / "scaling.json", hostile)]
    reader = read(page_of(*sources, out=tmp_path / "r.html"))
    shown = "".join(reader.text)
    assert "<img src=x onerror=" in shown  # as text
    assert "\u202e" not in shown


def test_without_escaping_the_check_would_fail(tmp_path):
    """The control: the same name as markup is noticed."""
    page = render("t", [Section(title="MARK", lines=["x"])])
    read(page)
    with pytest.raises(AssertionError):
        read(page.replace("MARK", "<img src=x onerror=alert(1)></img>"))


def test_the_largest_page_is_under_a_megabyte(tmp_path):
    """Eight long runs on 16 ranks; a page that would be larger is refused."""
    first = make_run(tmp_path / "0", steps=400, workers=16, launches=((1, 400),))
    runs = [first, *(make_run(tmp_path / str(n), steps=400, launches=((1, 400),)) for n in range(1, 8))]
    read(page_of(*runs, out=tmp_path / "r.html"))
    huge = Table(title="t", head=["a"], rows=[["x" * 1000] for _ in range(1100)])
    with pytest.raises(ConfigError, match="at most 1000000 bytes"):
        render("t", [Section(title="t", tables=[huge])])


def test_unfinished_and_old_runs_can_be_shown(tmp_path):
    """No result, no phases, no metrics: said, not hidden."""
    run = make_run(tmp_path / "run", result=False)
    with (run / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"step": 61, "ep')
    told = " ".join(read(page_of(run, out=tmp_path / "r.html")).text)
    assert "has not ended, and nothing on this machine trains it. Its last step is 60." in told
    assert "The same command starts from the beginning: no checkpoint." in told
    assert "breaks off within line 61" in told
    held = {"host": "", "boot_id": boot_id(), "pid": os.getpid(), "start_ticks": look_at(os.getpid()).start_ticks}
    write(run / "run.lock", held)
    assert "The run is training: step 60" in " ".join(read(page_of(run, out=tmp_path / "r.html")).text)
    for file in (*(run / "phases").iterdir(), run / "metrics.jsonl"):
        file.unlink()
    assert "No step phases were recorded" in " ".join(read(page_of(run, out=tmp_path / "r.html")).text)


def test_a_run_that_trains_again(tmp_path):
    """The result is that of the launch before: page and live view say "training", and after which step it goes on."""
    path = make_run(tmp_path / "run", steps=60, launches=((1, 40), (41, 60)), last_step=120)
    before = json.loads((path / "result.json").read_text()) | {"finished": False, "steps": 40, "fingerprint": "f" * 64}
    write(path / "result.json", before)
    ticks = look_at(os.getpid()).start_ticks
    held = {"host": "", "boot_id": boot_id(), "pid": os.getpid(), "start_ticks": ticks, "token": 2}

    def told():
        text = " ".join(" ".join(read(page_of(path, out=tmp_path / "r.html")).text).split())
        run = WatchedRun(path)
        assert read_run(path).state == run.state
        return run, text

    write(path / "run.lock", held)
    run, text = told()
    assert "The run is training, resumed after step 40: step 60 was the last" in text
    assert "was stopped" not in text and "f" * 64 not in text
    assert (run.state, setup(run).split(", ")[2]) == ("training", "resumed after step 40")
    (path / "checkpoints" / "step-00000060.0123abcd").mkdir(parents=True)
    write(path / "run.lock", held | {"token": 3})  # it has recorded no step of its own yet
    assert "The run is training, resumed after step 60: step 60" in told()[1]
    write(path / "run.lock", held | {"token": 2, "pid": 2**22 + 1})  # killed, after that result
    run, text = told()
    assert run.state == "ended"
    assert "Launch 2 ended, not finished: killed, or its error is in the output of its command" in text
    write(path / "result.json", before | {"steps": 60})
    run, text = told()
    assert (run.state, "The run was stopped after step 60" in text) == ("stopped", True)


def test_damage_anywhere_is_an_error_or_a_page(tmp_path):
    """Every file of a run cut off at several places, or holding other JSON: never a traceback."""
    sound = make_run(tmp_path / "sound", steps=20, launches=((1, 20),))
    names = [file.relative_to(sound) for file in sorted(sound.rglob("*.json*"))]
    assert len(names) == 7
    pages = 0
    for number, (name, part) in enumerate(
        (name, part) for name in names for part in (0.0, 0.4, 0.99, "[1]", "{}", "7")
    ):
        run = shutil.copytree(sound, tmp_path / str(number))
        content = (run / name).read_bytes()
        (run / name).write_bytes(part.encode() if isinstance(part, str) else content[: round(part * len(content))])
        try:
            read(page_of(run, out=tmp_path / "r.html"))
            pages += 1
        except ConfigError as error:
            assert (
                "what a run writes" in str(error) or "no run writes" in str(error) or "that a run writes" in str(error)
            )
    assert 10 < pages < 42


def test_a_line_that_lacks_something_is_damaged(tmp_path):
    """JSON that is no step: the page says so and ends before it, the live view passes it over, a diff ends there."""
    path, whole = make_run(tmp_path / "run", launches=((1, 60),)), make_run(tmp_path / "whole")
    lines = (path / "ledger.jsonl").read_text().splitlines()
    for wrong in ('{"step": 30, "epoch": 0, "num_samples": 64}', lines[29].replace('"loss": "0x', '"loss": "soft')):
        (path / "ledger.jsonl").write_text("\n".join([*lines[:29], wrong, *lines[30:], ""]))
        text = " ".join(read(page_of(path, out=tmp_path / "r.html")).text)
        assert "line 30 of" in text and "is damaged: what it said of step 30 is lost" in text
        run = WatchedRun(path)
        assert (run.step, run.damaged.total(), len(run.losses)) == (60, 1, 59)
        assert "the ledger is damaged from its line 30 on" in compare_runs(path, whole).notes[0]
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 61}\n')
    with (path / "phases" / "rank-0.jsonl").open("a") as file:
        file.write('{"step": 61}\n')
    assert WatchedRun(path).damaged.total() == 3
    write(path / "score.json", {"strategy": "exact"})
    assert setup(WatchedRun(path)).startswith("?, ? replicas")
    (path / "score.json").write_text("{")
    with pytest.raises(ConfigError, match=r"score.json is not the JSON .* Hint: put back a copy of it; or remove it"):
        WatchedRun(path)


def refused(sources, out, match):
    """Nothing is written, and what was there stays."""
    before = out.read_bytes() if out.exists() else None
    with pytest.raises(ConfigError, match=match):
        write_page(sources, out)
    assert (out.read_bytes() if out.exists() else None) == before


def test_what_cannot_be_shown_leaves_the_old_page(tmp_path):
    """Other data, another job, damage, other versions, nothing at all: a clear error, and no file is touched."""
    out = tmp_path / "r.html"
    run, other = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    page_of(run, out=out)
    changed = json.loads((other / "score.json").read_text())
    write(other / "score.json", changed | {"data": {"num_samples": 9, "fingerprint": "ff"}})
    strong, weak = (write_study(tmp_path / f"{w}.json", study(weak=w)) for w in (False, True))
    refused([strong, weak], out, "strong scaling of digits, another weak scaling")
    strong.write_text(strong.read_text()[:-40])
    refused([strong], out, "not a result file that can be read")
    refused([write(tmp_path / "v.json", {"kind": "unisono scaling", "version": 9})], out, "version 9")
    refused([write(tmp_path / "f.json", {"kind": "unisono forecast", "version": 9})], out, "version 9")
    refused([write(tmp_path / "g.json", {"kind": "unisono forecast", "version": 1})], out, "forecast is damaged")
    refused([write(tmp_path / "x.json", {"a": 1})], out, "neither a scaling study nor a forecast")
    refused([tmp_path / "nowhere"], out, "expected a run directory")
    script = tmp_path / "train.py"
    script.write_text("import torch")
    refused([script], out, "got the script .*train.py.*out=")
    refused([], out, "1 to 8")


def test_a_rank_is_compared_in_steps_that_all_have_done(tmp_path):
    """One that has joined when all became slower is not slow beside one that had died, or beside earlier steps."""
    run = make_run(tmp_path / "run", steps=200, workers=3, launches=((1, 200),))
    for rank, own in enumerate((range(1, 201), range(1, 101), range(101, 201))):
        file = run / "phases" / f"rank-{rank}.jsonl"
        head, *steps = [json.loads(line) for line in file.read_text().splitlines()]
        steps = [step for step in steps if step["step"] in own]
        for step in steps:
            step["ns"] = [time * (2 if step["step"] > 100 else 1) for time in step["ns"]]
        file.write_text("".join(json.dumps(line) + "\n" for line in (head, *steps)))
    text = " ".join(read(page_of(run, out=tmp_path / "r.html")).text)
    assert "Stragglers" in text and "is slow" not in text


@pytest.mark.parametrize(
    "line", ["rubbish", "[1]", '{"step": 7, "ns": [1]}', '{"step": "x", "at_ns": 0, "ns": [1]}', "{}"]
)
def test_a_damaged_line_of_phases_is_one_notice(line, tmp_path):
    """Which file and line it is, once; the times of all other lines are shown, and so is everything else."""
    run = make_run(tmp_path / "run")
    file = run / "phases" / "rank-1.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:9], line, *lines[10:], '{"step": 61, "at_n']))
    text = " ".join(" ".join(read(page_of(run, out=tmp_path / "r.html")).text).split())
    assert text.count("Damaged: ") == 1
    assert f"Damaged: {file} (line 10)." in text
    assert "Where a step goes, rank by rank" in text
    assert len(read_run(run).phases) == 119
    assert [*events(WatchedRun(run))] == ["phases/rank-1.jsonl has 1 damaged line: left out here"]


def test_other_files_are_never_replaced(tmp_path):
    """A page of ours may be written anew; anything else stays, and a missing directory is said."""
    run, notes = make_run(tmp_path / "a"), tmp_path / "notes.html"
    notes.write_text("<p>my notes</p>")
    refused([run], notes, "none of ours")
    refused([run], tmp_path / "no" / "r.html", "directory")
    page_of(run, out=tmp_path / "r.html")
    page_of(run, out=tmp_path / "r.html")


def test_curves_say_what_they_show(tmp_path):
    """One chart of losses, the test's with the steps'; a sentence over each chart; a smooth line over a pale one."""
    (section,) = sections_of([make_run(tmp_path / "run")])[1]
    titles = [chart.title for chart in section.charts]
    assert titles[:3] == ["Loss", "test_accuracy", "Throughput"]
    assert all(chart.finding for chart in section.charts)
    assert section.charts[0].finding == "From 0.5858 to 0.03613, in the first and the last 10 steps."  # of 2 / step
    assert "last 0.9833" in section.charts[1].finding
    (long,) = sections_of([make_run(tmp_path / "long", steps=600, launches=((1, 600),))])[1]
    for place, name in ((0, "lowest and highest of 4 steps"), (2, "lowest and highest of 4 steps")):
        assert 'class="band c0"' in (drawing := long.charts[place].drawing.svg())
        assert f">{name}</text>" in drawing and ">mean of 15 steps</text>" in drawing


def test_a_single_step_has_no_curve(tmp_path):
    """Its values stand in words; a metric that was measured once, too. Several such runs are compared in words."""
    one, two = (make_run(tmp_path / name, steps=1, launches=((1, 1),)) for name in ("one", "two"))
    with (one / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "epoch": 0, "values": {"test_loss": 0.5, "test_accuracy": 0.25}}\n')
    section = sections_of([one])[1][0]
    assert [chart.title for chart in section.charts] == ["Where a step goes, rank by rank", "The run in time"]
    told = [remark.text for remark in section.findings]
    where = "in step 1; no other step has a value, so there is no curve."
    assert f"Loss: loss of the step's batch 2, test_loss 0.5, {where}" in told
    assert f"test_accuracy: 0.25, {where}" in told and f"Throughput: 1,778, {where}" in told
    assert "Finished after 1 step, with" in told[0]
    compared = sections_of([one, two])[1][0]
    assert compared.charts == [] and f"Loss of all runs: one 2, two 2, {where}" in [
        remark.text for remark in compared.findings
    ]


def test_what_a_stopped_run_says(tmp_path):
    """That it is saved and what goes on with it; no chart says that it was not interrupted, and leaves it at that."""
    run = make_run(tmp_path / "run", launches=((1, 35), (31, 60)))
    write(run / "command.json", {"command": "unisono run -n 2 train.py", "directory": str(Path.cwd())})
    write(run / "result.json", {"finished": False, "steps": 60})
    (section,) = sections_of([run])[1]
    assert section.findings[0].text == (
        "The run was stopped after step 60, and saved: the same command goes on (unisono run -n 2 train.py)."
    )
    assert section.charts[-1].finding.endswith(" in all up to its last step; the run is not finished.")
    drawing = section.charts[-1].drawing.svg()
    for label in ("training", "interrupted"):
        assert f">{label}</text>" in drawing
    (run / "result.json").unlink()
    (section,) = sections_of([run])[1]
    assert (
        "The same command starts from the beginning (unisono run -n 2 train.py): no checkpoint."
        in section.findings[0].text
    )
    calm = sections_of([make_run(tmp_path / "calm")])[1][0].charts
    assert calm[-1].finding == "No interruption." and calm[-2].finding.startswith(
        "Backward takes the largest part of a step: 56%"
    )


def test_running_means():
    """Of a straight line the line itself; what is not finite is left out; few points stay as they are."""
    found, width = mean_of([(float(x), 2.0 * x) for x in range(400)] + [(400.0, float("nan"))])
    assert width == 11
    assert [value for _, value in found[10:20]] == [2.0 * x for x in range(10, 20)]
    assert len(found) == 400
    assert mean_of([(1.0, 5.0), (2.0, 7.0)]) == ([(1.0, 5.0), (2.0, 7.0)], 1)


def test_the_speed_of_a_stretch():
    """What goes through over the time that it takes: a step of 1 s and one of 3 s, 6 samples each, make 3 a second."""
    means, width = rates_of([(float(x), 6.0 if x % 2 else 2.0) for x in range(4000)])
    assert width == 101
    assert all(value == pytest.approx(3.0, rel=0.02) for _, value in means[100:-100])
    assert rates_of([(1.0, 4.0)]) == ([(1.0, 4.0)], 1)


def test_a_loss_that_shoots_up_at_once_diverges():
    """It begins where the first step was, not at the mean of ten that contain the peak; noise is no such peak."""
    steps = [2.3, 15.0, 1200.0, 900.0, 300.0, *[6.5] * 20]
    points = list(enumerate(steps, start=1))
    assert diverges(points)
    assert from_to(points).startswith("Risen from 2.3 to 6.5, in the first step and the last 10")
    assert not diverges([(step, 2.0 + step % 3) for step in range(40)])


def test_what_diverges_is_said(tmp_path):
    """In red above the charts and above the loss; a loss that falls is told as it is."""
    run = make_run(tmp_path / "run")
    assert "The loss diverges" not in page_of(run, out=tmp_path / "r.html")
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    rising = [line | {"loss": float(line["step"]).hex()} for line in lines]
    (run / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rising))
    told = " ".join(read(page_of(run, out=tmp_path / "r.html")).text)
    assert "The loss diverges. Risen from 1 to 55.5, in the first step and the last 10: lower the learning" in told
    (run / "ledger.jsonl").write_text("".join(json.dumps(line | {"loss": (1e30).hex()}) + "\n" for line in lines))
    assert "1e+30" in (shown := page_of(run, out=tmp_path / "r.html"))
    assert "000,000" not in shown


def test_what_was_run_comes_first(tmp_path):
    """Strategy, replicas, batch, epochs, workers and time in one line."""
    told = " ".join(read(page_of(make_run(tmp_path / "run"), out=tmp_path / "r.html")).text)
    assert (
        "exact, 8 replicas, batches of 64, 1 epoch, 2 workers, 4.2 s of training, mean 1,600 samples/s (2,000" in told
    )
