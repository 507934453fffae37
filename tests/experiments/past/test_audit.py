"""An audit finds what a forger has changed, also where he has made all hashes fit again; an honest run passes."""

import json
import shutil

import pytest
from click.testing import CliRunner

from experiments.past import forger
from ranks import once
from unisono.cli.main import unisono as command
from unisono.cli.past.audit import _lines
from unisono.errors import ConfigError
from unisono.experiments.past.audit import audit, chance, cut, draw
from unisono.observe.ledger import Ledger


@once
def trained(folder):
    return forger.train(folder)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("honest"))


@pytest.fixture
def run(honest, tmp_path):
    """A copy of an honest run, to be forged."""
    return forger.copied(honest, tmp_path)


def spans(segments):
    return [(one.start, one.last) for one in segments]


def test_segments_lie_between_kept_states():
    """From the beginning over every kept state to the end; what lies elsewhere is none."""
    assert spans(cut([10, 5, 15], 15)) == [(0, 5), (5, 10), (10, 15)]
    assert spans(cut([], 7)) == [(0, 7)]
    assert spans(cut([3, 9], 7)) == [(0, 3), (3, 7)]


def test_the_draw_is_the_seed_s():
    """The same seed draws the same places, another one others; each place is drawn as often as others."""
    assert draw(100, 5, 1) == draw(100, 5, 1) != draw(100, 5, 2)
    assert draw(3, 9, 0) == [0, 1, 2]
    counts = [sum(place in draw(10, 3, seed) for seed in range(2000)) for place in range(10)]
    assert min(counts) > 500
    assert max(counts) < 700


def test_the_chance_is_that_of_draws():
    """The probability that is told is the frequency with which draws hit; above 1 - (1 - f)^K."""
    hits = sum(bool({0, 1} & {*draw(10, 3, seed)}) for seed in range(3000)) / 3000
    assert chance(0.2, 3, 10) == pytest.approx(hits, abs=0.03)
    assert chance(0.2, 3, 10) > 1 - (1 - 0.2) ** 3
    assert (chance(0.01, 0, 10), chance(0.01, 10, 10)) == (0, 1)


def edit_line(step, **values):
    return lambda entry: entry | values if entry["step"] == step else entry


def line_alone(run):
    forger.change_lines(run, edit_line(4, loss="0x1.0p+0"))


def shorter(run):
    forger.change_lines(run, lambda entry: entry if entry["step"] <= 10 else None)
    forger.seal(run)


def checkpoint_alone(run):
    forger.change_weights(run, 10)


def other_code(run):
    def change(program):
        program["files"] = dict.fromkeys(program["files"], "0" * 64)

    forger.change_object(run, "program.json", change)


def commitment_alone(run):
    forger.change_object(run, "commitment.json", lambda it: it.update(fingerprint="0" * 64))


def score_alone(run):
    forger.change_object(run, "score.json", lambda it: it.update(seed=9))


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (line_alone, "the ledger: line 4 is not the line that line 5 was written after"),
        (shorter, "the ledger: it ends in epoch 2, the result has 3 epochs"),
        (checkpoint_alone, "a checkpoint: "),
        (other_code, "train.py has changed"),
        (commitment_alone, "the commitment: commitment.json has been changed"),
        (score_alone, "a checkpoint: "),
    ],
)
def test_files_that_contradict_each_other(run, forge, said):
    """Each is named without a step being computed; the honest run has nothing to be named."""
    forge(run)
    found = audit(str(run), segments=0)
    assert not found.is_passed
    assert any(said in line for line in found.problems), found.problems


def test_a_line_that_was_damaged_before_a_resume(honest, run):
    """It is named, with the resume; the ledger of an equal run mends it."""
    ledger = run / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join([*lines[:6], b"rubbish\n", *lines[7:]]))
    assert f"the ledger: line 7 of {ledger} is damaged" in audit(str(run), segments=0).problems[0]
    with pytest.warns(UserWarning, match=r"the first is 7\. .* Hint: put back a copy of the file"):
        Ledger(ledger, 15).close()
    (told,) = audit(str(run), segments=0).problems
    assert "has no line of step 7, which was damaged before the resume after step 15: see " in told
    assert "an equal run" in told
    shutil.copy(honest / "ledger.jsonl", ledger)
    assert audit(str(run), segments=0).problems == []


def test_what_was_published_counts(honest, run):
    """A run that was made anew as a whole is another than the published one; honest files are what was published."""
    published = json.loads((honest / "commitment.json").read_text())["sha256"]
    assert audit(str(honest), segments=0, commitment=published).is_passed
    forger.change_lines(run, edit_line(4, loss="0x1.0p+0"))
    forger.seal(run)
    assert audit(str(run), segments=0).problems == []
    found = audit(str(run), segments=0, commitment=published)
    assert any(f"{published} was published" in line for line in found.problems)


OTHER = {"CUBLASLT_WORKSPACE_SIZE": "1"}  # recorded; without effect on a CPU


def launched_again(run, folder, **said):
    """Launch a run once more, in another environment, which is allowed."""
    shutil.copytree(run, folder / "run", symlinks=True)
    return forger.train(folder, OTHER, drift=True, **said)


@pytest.mark.slow
def test_another_launch_is_no_forgery(honest, tmp_path):
    """Where it computes nothing, the environment stays that of the steps, and the published commitment the run's."""
    published = json.loads((honest / "commitment.json").read_text())["sha256"]
    found = audit(str(launched_again(honest, tmp_path)), segments=0, commitment=published)
    assert (found.problems, found.drifts) == ([], [])


@pytest.mark.slow
def test_an_allowed_change_is_told(honest, tmp_path):
    """Steps in another environment: committed as such and told, no forgery; what somebody changes there is named."""
    run = launched_again(honest, tmp_path, epochs=4)
    found = audit(str(run), segments=0)
    assert found.is_passed
    assert any(line.startswith("the environment was allowed to change after step 15: ") for line in _lines(found))
    for name, value in (("torch", "1.0"), ("drifted", [])):
        forged = forger.copied(run, tmp_path / name)
        forger.change_object(forged, "environment.json", lambda it, name=name, value=value: it.update({name: value}))
        said = "drifted" if name == "drifted" else "environment"
        assert any(line.startswith(f"the commitment: {said}: ") for line in audit(str(forged), segments=0).problems)


def test_a_change_that_was_never_allowed(run):
    """Another environment, and an allowed change that nobody has committed to: both named."""
    forger.change_object(run, "environment.json", lambda it: it.update(torch="1.0", drifted=[["after step 5: torch"]]))
    told = " ".join(audit(str(run), segments=0).problems)
    assert "the commitment: environment: " in told
    assert "the commitment: drifted: None -> " in told


def test_rubbish_is_refused(run, tmp_path):
    """No run, a run that goes on, and settings out of range: one line each."""
    with pytest.raises(ConfigError, match=r"expected a run directory"):
        audit(str(tmp_path))
    (run / "result.json").unlink()
    with pytest.raises(ConfigError, match="expected a run that has ended"):
        audit(str(run))
    done = CliRunner().invoke(command, ["audit", str(run), "--segments", "x"])
    assert done.exit_code == 2
    assert "--segments" in done.stderr


@pytest.mark.slow
def test_an_honest_run_passes(honest, tmp_path):
    """All segments drawn; the page says so; nothing of the run is touched."""
    before = {path: path.read_bytes() for path in honest.rglob("*") if path.is_file()}
    done = CliRunner().invoke(command, ["audit", str(honest), "--segments", "9", "-o", str(tmp_path / "a.html")])
    assert done.exit_code == 0, done.output
    assert "nothing was found\n15 of 15 steps computed again, 3 of 3 segments\n" in done.stdout
    assert "15 of 15 steps to compute, 3 of 3 segments" in done.stderr
    assert "Nothing was found." in (tmp_path / "a.html").read_text()
    assert {path: path.read_bytes() for path in honest.rglob("*") if path.is_file()} == before


def fine_tuned(run, tmp_path):
    """Other weights at step 5."""
    return gone_on_with(run, tmp_path, lambda: forger.change_weights(run, 5))


def faster(run, tmp_path):
    """Another learning rate from step 5 on, as the optimizer's state has it; score and program say the old one."""
    return gone_on_with(
        run, tmp_path, lambda: forger.change_values(run, 5, lambda it: it["optimizer"]["groups"][0].update(lr=0.2))
    )


def gone_on_with(run, tmp_path, change):
    """Change the state of step 5, from which the rest is trained honestly."""
    for step, place in forger.list_steps(run / "checkpoints"):
        if step > 5:
            forger.shutil.rmtree(place)
    change()
    forger.change_lines(run, lambda entry: entry if entry["step"] <= 5 else None)
    forger.seal(run)
    folder = tmp_path / "work"
    folder.mkdir()
    run.rename(folder / "run")
    return forger.seal(forger.train(folder))


def other_data(run, tmp_path):
    """Trained on other data than the score says."""
    other = forger.train(tmp_path / "other", data=2)
    return told_as(other, run)


def other_rate(run, tmp_path):
    """Trained with another learning rate than score and ledger say."""
    other = forger.train(tmp_path / "other", lr=0.2)
    forger.change_lines(other, lambda entry: entry | {"lr": (0.1).hex()})
    return told_as(other, run)


def told_as(other, run):
    forger.shutil.copy(run / "score.json", other)
    forger.shutil.copy(run / "program.json", other)
    return forger.seal(other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (fine_tuned, "the checkpoint of step 5 is not where the steps lead: model"),
        (faster, "the checkpoint of step 5 is not where the steps lead: state.json: optimizer"),
        (other_data, "step 1 is another than in the ledger: loss, gradient"),
        (other_rate, "step 2 is another than in the ledger: "),
    ],
)
def test_a_forgery_with_new_hashes(run, tmp_path, forge, said):
    """All hashes fit; the segment that holds the forgery, computed again, does not lead where the run says."""
    forged = forge(run, tmp_path)
    found = audit(str(forged), segments=1, seed=next(s for s in range(99) if draw(3, 1, s) == [0]), allow_drift=True)
    assert found.problems == []
    assert said in found.segments[0].problem
    assert not found.is_passed
