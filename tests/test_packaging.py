"""What is handed out: one version, a citation, hooks that name real tools, and a wheel that trains by itself."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import unisono

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_written_once():
    """In the package itself; the build reads it there, and nothing else spells it."""
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert (ROOT / PROJECT["tool"]["hatch"]["version"]["path"]).samefile(unisono.__file__)
    assert re.fullmatch(r"\d+\.\d+\.\d+", unisono.__version__)
    assert "version:" not in (ROOT / "CITATION.cff").read_text().replace("cff-version:", "")


def test_types_are_shipped():
    """Type checkers read the annotations of an installed unisono."""
    assert (Path(unisono.__file__).parent / "py.typed").is_file()
    assert PROJECT["tool"]["mypy"]["strict"] is True


def test_the_makefile_says_what_it_can():
    """``make help`` lists every target that people call, and none that is not there."""
    text = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE).group(1).split())
    documented = set(re.findall(r"^([a-z-]+):.*##", text, re.MULTILINE))
    assert phony == documented


def test_hooks_are_local():
    """Every hook of pre-commit runs a tool of the environment: nothing is fetched from anywhere."""
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"- repo: (\S+)", text)) == {"local"}
    entries = re.findall(r"entry: \.venv/bin/(\S+)", text)
    assert len(entries) == text.count("- id:") >= 4
    assert set(entries) <= {"ruff", "mypy", "lint-imports", "python"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_trains_by_itself():
    """Built from the sdist, installed without the sources, in an empty directory with an empty HOME."""
    for tool in ("build", "hatchling"):
        if importlib.util.find_spec(tool) is None:
            pytest.skip(f"needs {tool}, of the extra dev")
    done = subprocess.run(
        [str(ROOT / ".ci" / "wheel"), "--share"], capture_output=True, text=True, timeout=580, check=False,
        env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No broken requirements found" in done.stdout
    assert f"unisono {unisono.__version__} from the wheel" in done.stdout
    assert re.search(r"^fingerprint +[0-9a-f]{64}$", done.stdout, re.MULTILINE)
