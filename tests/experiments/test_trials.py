"""What verify, chaos and the benches share: lists of workers, options of recipes, results of fresh runs."""

import json

import pytest

from unisono.errors import ConfigError
from unisono.experiments.trials import (
    check_target,
    is_script,
    parse_workers,
    read_fresh_result,
    read_result,
    refuse_arguments,
    refuse_recipe_options,
    script_environment,
    script_starter,
)


def test_workers_are_a_list_of_numbers():
    """In the given order, each as often as it was given."""
    assert parse_workers("4, 1,2,1") == [4, 1, 2, 1]
    assert parse_workers("1024") == [1024]
    for wrong in ("", "1,", "0", "-1", "two", "1.5", "1025", "\u0663"):
        with pytest.raises(ConfigError, match="--workers as numbers"):
            parse_workers(wrong)


def test_scripts_are_files():
    """By their ending or their directory."""
    assert [is_script(name) for name in ("train.py", "bin/train", "digits", "py")] == [True, True, False, False]


def test_targets_are_looked_for_first(tmp_path):
    """A recipe by its name, a script by its file; else what there is, and the nearest of it."""
    (tmp_path / "train.py").touch()
    check_target("digits")
    check_target(str(tmp_path / "train.py"))
    with pytest.raises(ConfigError, match=r"expected a Python file .* got nothing"):
        check_target(str(tmp_path / "nope.py"))
    with pytest.raises(ConfigError, match=r"one of the recipes digits, .*, got 'digts'\. Hint: did you mean 'digits'"):
        check_target("digts")
    with pytest.raises(ConfigError, match=r"got 'train'.* Hint: .*FILE\.py|did you mean"):
        check_target("train")


def test_what_belongs_to_the_other_kind_is_refused():
    """Options of recipes for a script, arguments for a recipe."""
    refuse_recipe_options("job.py", {"replicas": 2, "batch_size": None}, "replicas")
    with pytest.raises(ConfigError, match=r"--batch-size is for recipes; job\.py sets it itself"):
        refuse_recipe_options("job.py", {"replicas": 2, "batch_size": 0}, "replicas")
    refuse_arguments("digits", ())
    with pytest.raises(ConfigError, match="recipe 'digits' takes no arguments, got a b"):
        refuse_arguments("digits", ("a", "b"))


def test_a_script_is_looked_for_at_once(tmp_path):
    """Not when it is first started."""
    with pytest.raises(ConfigError, match="nowhere"):
        script_starter(str(tmp_path / "nowhere.py"), (), threads=1, replicas_of=lambda count: count)
    assert script_environment(tmp_path, 3) == {"UNISONO_RUN_DIR": str(tmp_path), "UNISONO_REPLICAS": "3"}


@pytest.mark.parametrize("wrong", [{"world_size": 3}, {"resumed_from_step": 4}, {"steps": 0}])
def test_only_fresh_runs_count(tmp_path, wrong):
    """Another world, a resumed run or one without steps compares something else than was asked."""
    with pytest.raises(ConfigError, match=r"without a result\. Hint"):
        read_result(tmp_path)
    fresh = {"world_size": 2, "resumed_from_step": 0, "steps": 5}
    (tmp_path / "result.json").write_text(json.dumps(fresh))
    assert read_fresh_result(tmp_path, 2) == fresh
    (tmp_path / "result.json").write_text(json.dumps({**fresh, **wrong}))
    assert read_result(tmp_path) == {**fresh, **wrong}
    with pytest.raises(ConfigError, match="expected a fresh run of 2 workers"):
        read_fresh_result(tmp_path, 2)
