"""The examples do what they say."""

import importlib.util
from pathlib import Path

import pytest

from ranks import run_threads

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_easytext_style(tmp_path, capsys):
    """One rank and three: the same fingerprint and scores; the callback ran on the leader alone and knew its world."""
    pytest.importorskip("sklearn", reason="needs the extra recipes")
    example = load("easytext_style")
    told = {}

    def program(transport):
        history = tmp_path / f"{transport.world_size}.txt"
        result = example.main(transport, str(history), epochs=2)
        told[transport.world_size] = history.read_text().splitlines()
        return result["fingerprint"], result["metrics"]

    expected = run_threads(program, 1)[0]
    assert run_threads(program, 3) == [expected] * 3
    assert set(expected[1]) == {"test_loss", "test_f1", "test_errors_of_8"}
    assert expected[1]["test_f1"] > 0.5
    assert expected[1]["test_errors_of_8"] == int(expected[1]["test_errors_of_8"])
    assert [line.rpartition(", ")[2] for line in told[1]] == ["seen by one rank"] * 2
    assert [line.rpartition(", ")[2] for line in told[3]] == ["seen by several ranks"] * 2
    assert [line.partition(",")[0] for line in told[1]] == [line.partition(",")[0] for line in told[3]]
    assert capsys.readouterr().out.count(expected[0]) == 2
