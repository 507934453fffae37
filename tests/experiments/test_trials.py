"""What verify, chaos and the benches share: targets, turns, results of fresh runs."""

import json
from pathlib import Path

import pytest

from unisono.errors import ConfigError
from unisono.experiments.trials import (
    check_target,
    is_script,
    read_result,
    run_fresh,
    script_environment,
    starter,
    turns,
)


def test_scripts_are_files():
    """By their ending or their directory."""
    assert [is_script(name) for name in ("train.py", "bin/train", "digits", "py")] == [True, True, False, False]


def test_targets_are_looked_for_first(tmp_path):
    """A recipe by its name, a script by its file; else what there is, and the nearest of it."""
    (tmp_path / "train.py").touch()
    check_target("digits", (), {})
    check_target(str(tmp_path / "train.py"), ("x",), {})
    with pytest.raises(ConfigError, match=r"expected a Python file .* got nothing"):
        check_target(str(tmp_path / "nope.py"), (), {})
    with pytest.raises(ConfigError, match=r"one of the recipes digits, .*, got 'digts'\. Hint: did you mean 'digits'"):
        check_target("digts", (), {})
    with pytest.raises(ConfigError, match=r"got 'train'.* Hint: .*FILE\.py|did you mean"):
        check_target("train", (), {})


def test_what_belongs_to_the_other_kind_is_refused(tmp_path):
    """Options of recipes for a script, arguments for a recipe."""
    script = str(tmp_path / "job.py")
    Path(script).touch()
    check_target(script, (), {"replicas": 2, "batch_size": None}, ["replicas"])
    with pytest.raises(ConfigError, match=r"--batch-size is for recipes; .*job\.py sets it itself"):
        check_target(script, (), {"replicas": 2, "batch_size": 0}, ["replicas"])
    with pytest.raises(ConfigError, match="recipe 'digits' takes no arguments, got a b"):
        check_target("digits", ("a", "b"), {})


def test_everything_is_checked_before_the_first_run(tmp_path):
    """Script, replicas and options, not when it is first started."""
    with pytest.raises(ConfigError, match="nowhere"):
        starter(str(tmp_path / "nowhere.py"), (), [1], {"threads": 1})
    with pytest.raises(ConfigError, match="--workers of at most --replicas 2, got 4"):
        starter("job.py", (), [1, 4], {"replicas": 2})
    with pytest.raises(ConfigError, match="--strategy is for recipes"):
        starter("job.py", (), [1], {"strategy": "ddp"})
    assert script_environment(tmp_path, 3) == {"UNISONO_RUN_DIR": str(tmp_path), "UNISONO_REPLICAS": "3"}


def test_runs_take_turns():
    """Forwards and backwards, so that what slows the machine slows all alike."""
    assert list(turns("ab", 3)) == [(0, 0, "a"), (0, 1, "b"), (1, 1, "b"), (1, 0, "a"), (2, 0, "a"), (2, 1, "b")]


@pytest.mark.parametrize("wrong", [{"world_size": 3}, {"resumed_from_step": 4}, {"steps": 0}])
def test_only_fresh_runs_count(tmp_path, wrong):
    """Another world, a resumed run or one without steps compares something else than was asked."""
    with pytest.raises(ConfigError, match=r"without a result\. Hint"):
        read_result(tmp_path)
    fresh = {"world_size": 2, "resumed_from_step": 0, "steps": 5}

    def ending_with(result):
        def start(_, out):
            for name, content in (("result", result), ("score", {"threads": 1})):
                (out / f"{name}.json").write_text(json.dumps(content))

        return start

    run = run_fresh(ending_with(fresh), 2, tmp_path)
    assert (run.result, run.score) == (fresh, {"threads": 1})
    with pytest.raises(ConfigError, match="expected a fresh run of 2 workers"):
        run_fresh(ending_with({**fresh, **wrong}), 2, tmp_path)
