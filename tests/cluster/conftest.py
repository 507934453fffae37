"""What `make cluster` has seen goes to ``build/cluster.jsonl``: one JSON line a test."""

import json
import time
from pathlib import Path

import pytest

RECORD = Path(__file__).parents[2] / "build" / "cluster.jsonl"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if Path(__file__).parent in item.path.parents and (report.when == "call" or report.outcome != "passed"):
        line = {
            "test": item.nodeid, "what": (item.function.__doc__ or "").strip(), "seen": report.outcome,
            "reason": report.longrepr[2] if report.outcome == "skipped" else report.longreprtext[-2000:],
            "seconds": round(report.duration, 1), "date": time.strftime("%Y-%m-%d"),
        }  # fmt: skip
        RECORD.parent.mkdir(exist_ok=True)
        with RECORD.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return report
