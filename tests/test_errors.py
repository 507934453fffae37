"""One tree of errors, each leaf also the builtin it specialises."""

import ast
import inspect

import pytest

from unisono import errors

BUILTINS = {
    "ConfigError": ValueError,
    "ScoreMismatch": ValueError,
    "EnvironmentDrift": ValueError,
    "WorldError": RuntimeError,
    "LaunchError": RuntimeError,
    "WorkerFailed": RuntimeError,
    "PeerLost": ConnectionError,
    "LeaderFailed": RuntimeError,
    "RankDivergence": RuntimeError,
    "PlaceError": RuntimeError,
    "CallbackTimeout": TimeoutError,
    "StepError": RuntimeError,
    "NonFiniteError": ArithmeticError,
    "DataError": ValueError,
    "CheckpointError": OSError,
}


def found() -> dict[str, type]:
    return {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind)}


def test_the_tree_is_complete():
    """Every class in the module is pinned here with its builtin, so none is forgotten."""
    assert set(found()) == {"UnisonoError", "RunStopped", *BUILTINS}


@pytest.mark.parametrize("name", BUILTINS)
def test_each_leaf_is_ours_and_a_builtin(name):
    """``except UnisonoError`` and ``except ValueError`` both work."""
    assert issubclass(found()[name], errors.UnisonoError)
    assert issubclass(found()[name], BUILTINS[name])


@pytest.mark.parametrize("name", BUILTINS)
def test_the_docstring_draws_each_leaf(name):
    """The tree in the module's docstring names every error."""
    assert name in (errors.__doc__ or "")


def test_errors_carry_what_programs_need():
    """A failed worker carries rank and exit code, a refused step its number and replicas."""
    failed = errors.WorkerFailed("rank 1 failed", rank=1, exit_code=137)
    assert (failed.rank, failed.exit_code, str(failed)) == (1, 137, "rank 1 failed")
    refused = errors.NonFiniteError("step 4", step=4, replicas=(0, 2))
    assert (refused.step, refused.replicas, str(refused)) == (4, (0, 2), "step 4")


def test_a_stopped_run_is_no_error():
    """It ends the program with its own code, and no handler of exceptions keeps it."""
    stopped = errors.RunStopped(7)
    assert (stopped.step, stopped.code) == (7, 75)
    assert isinstance(stopped, SystemExit)
    assert not isinstance(stopped, Exception)


def test_the_module_imports_nothing():
    """Errors can be imported from anywhere without a cycle or a cost."""
    tree = ast.parse(inspect.getsource(errors))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
