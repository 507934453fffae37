"""The picture of `time_to_accuracy`: each chart says in its title who is first at the target, and when DDP is."""

from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def line(name: str, seconds: float, *accuracies: float) -> dict[str, Any]:
    """Return a run whose epochs take `seconds` each."""
    return {"name": name, "epochs": [{"train_s": seconds, "accuracy": accuracy} for accuracy in accuracies]}


RUNS = [line("DDP", 90.0, 0.8, 0.86), line("unisono, fast", 10.0, 0.87), line("unisono, fast", 12.0, 0.87)]


@pytest.mark.parametrize(
    ("job", "lines", "title"),
    [
        ("imdb", RUNS, "IMDB: 85.00% after 11 s (unisono, fast), 3 min (DDP)"),
        ("mnist", RUNS, "MNIST: 86.00% after 11 s (unisono, fast), 3 min (DDP)"),  # where DDP ends
        ("imdb", [*RUNS, line("unisono, fast", 1.0, 0.84)], "IMDB"),  # one of its runs does not reach it
        ("imdb", RUNS[1:], "IMDB"),
        ("mnist", RUNS[1:], "MNIST"),
    ],
)
def test_a_chart_says_what_it_shows(job, lines, title, monkeypatch, tmp_path):
    """Nothing is said where somebody's runs did not all get there, or DDP is missing; the title is in the picture."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from accuracy_tables import draw, finding

    assert finding(job, lines) == title
    draw({job: lines}, tmp_path / "picture.svg")
    assert f">{title}<" in (tmp_path / "picture.svg").read_text()
