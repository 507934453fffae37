"""What follows from step phases: medians, warm-up, speed-up, labels; and files that cannot be trusted."""

import json

import pytest

from scaling.made import records, study, trial
from unisono.errors import ConfigError
from unisono.scaling.study import beyond_ideal, load, save, study_from, summarise, trial_of

LAUNCHED_NS = 10**18 - 3 * 10**9
HOW = {"repeat": 0, "warmup": 2, "launched_ns": LAUNCHED_NS, "total_s": 9.0, "batch_size": 64, "fingerprint": "f",
       "load": 1.0}  # fmt: skip


def test_a_step_lasts_as_long_as_on_its_slowest_rank():
    """Without checkpoints and evaluations, which are counted apart; start-up ends where the first step begins."""
    found = trial_of(records(3, slow=1, checkpoint=500), workers=3, **HOW)
    assert found.step_s == pytest.approx(0.048)
    assert found.steps == 10
    assert found.startup_s == pytest.approx(3.0)
    assert [rank["forward"] for rank in found.phases_s] == pytest.approx([0.010, 0.020, 0.010])
    assert found.between_s[0] == {"checkpoint": pytest.approx(6.0), "evaluate": 0.0}


def test_the_warm_up_is_dropped():
    """Two slow first steps change nothing, with a warm-up of two; with none they do."""
    slow = records(2, 2, forward=500)
    rest = records(2, 3, first=3)
    assert trial_of([*slow, *rest], workers=2, **HOW).step_s == pytest.approx(0.038)
    assert trial_of([*slow, *rest], workers=2, **HOW | {"warmup": 0}).step_q3_s > 0.5


@pytest.mark.parametrize("lost", [0, 7, -1])
def test_a_missing_record_is_no_measurement(lost):
    """A rank that was killed, or steps done twice, cannot be timed; neither can a run without steps."""
    whole = records(2)
    with pytest.raises(ConfigError, match="disturbed"):
        trial_of([*whole[:lost], *whole[lost:][1:]], workers=2, **HOW)
    with pytest.raises(ConfigError, match="disturbed"):
        trial_of([*whole, whole[0]], workers=2, **HOW)
    with pytest.raises(ConfigError, match="disturbed"):
        trial_of([], workers=2, **HOW)
    with pytest.raises(ConfigError, match="after 11 of warm-up"):
        trial_of(whole, workers=2, **HOW | {"warmup": 11})


def test_speedup_and_efficiency_over_one_worker():
    """Medians over repetitions; from the fastest to the slowest; more threads than cores are labelled."""
    trials = [trial(1, 0.09), trial(1, 0.08, repeat=1), trial(1, 0.07, repeat=2), trial(2, 0.05), trial(4, 0.04)]
    one, two, four = summarise(study(*trials))
    assert (one.step_s, one.low_s, one.high_s) == (0.08, 0.07, 0.09)
    assert two.speedup == pytest.approx(1.6)
    assert two.efficiency == pytest.approx(0.8)
    assert (two.low_s, two.high_s) == pytest.approx((0.045, 0.055))  # of a single trial, the quartiles of its steps
    assert [row.is_oversubscribed for row in (one, two, four)] == [False, False, True]
    assert [row.is_oversubscribed for row in summarise(study(*trials, threads=2))] == [False, True, True]
    assert not any(row.is_oversubscribed for row in summarise(study(*trials, device="cuda")))


def test_weak_scaling_compares_samples_per_second():
    """Twice the batch in the same time is twice as fast."""
    one, two = summarise(study(trial(1, 0.08), trial(2, 0.08, batch_size=128), weak=True))
    assert two.speedup == pytest.approx(2.0)
    assert two.efficiency == pytest.approx(1.0)
    assert beyond_ideal([one, two], weak=True)[2]["forward"] == pytest.approx(0.0)


def test_what_is_beyond_the_ideal_is_named():
    """The exchange has no ideal but nothing; compute should shrink with the workers."""
    rows = summarise(study(trial(1, 0.08), trial(2, 0.05)))
    beyond = beyond_ideal(rows, weak=False)[2]
    assert beyond["reduce"] == pytest.approx(0.0125)
    assert beyond["forward"] == pytest.approx(0.025 - 0.02)


def test_fingerprints_are_compared_where_one_is_promised():
    """Equal, different, and not promised: another strategy, or another batch."""
    assert study().agrees is True
    differing = (trial(1, 0.08), trial(2, 0.05, fingerprint="g"))
    assert study(*differing).agrees is False
    assert study(*differing).fingerprints == {"f": [1], "g": [2]}
    assert study(*differing, is_exact=False).agrees is None
    assert study(*differing, weak=True).agrees is None


def test_a_study_survives_its_file(tmp_path):
    """What is saved is loaded, equal."""
    made = study()
    save(made, tmp_path / "scaling.json")
    assert load(tmp_path / "scaling.json") == made


def test_files_that_are_not_whole_are_refused(tmp_path):
    """Truncated at any place, another version, another kind, missing entries: one clear error, never a traceback."""
    file = tmp_path / "scaling.json"
    save(study(), file)
    text = file.read_text()
    plain = json.loads(text)
    for part in range(0, len(text) - 2, 97):
        file.write_text(text[:part])
        with pytest.raises(ConfigError, match="read"):
            load(file)
    with pytest.raises(ConfigError, match="version 2"):
        study_from({**plain, "version": 2}, "it")
    for wrong in ([], 3, {"kind": "other"}):
        with pytest.raises(ConfigError, match="no scaling study"):
            study_from(wrong, "it")
    for key in set(plain) - {"kind", "version"}:
        with pytest.raises(ConfigError, match="damaged"):
            study_from({name: value for name, value in plain.items() if name != key}, "it")
    for name, value in (("step_s", 0.0), ("step_s", float("nan")), ("step_q3_s", float("inf")), ("phases_s", [])):
        with pytest.raises(ConfigError, match="damaged"):
            study_from({**plain, "trials": [{**plain["trials"][0], name: value}]}, "it")
    plain["trials"][1]["phases_s"].pop()
    with pytest.raises(ConfigError, match="lacks ranks"):
        study_from(plain, "it")
    with pytest.raises(ConfigError, match="damaged"):
        study_from({**plain, "trials": []}, "it")
