"""The launch as plain values."""

import subprocess
import sys

import pytest

from unisono.errors import ConfigError
from unisono.launchers.local import run_local
from unisono.launchers.spec import (
    LaunchSpec,
    ModuleTarget,
    ScriptTarget,
    check_target,
    resolve_workers,
)

SCRIPT = ScriptTarget(path="train.py")


@pytest.mark.parametrize("settings", [{"workers": 0}, {"threads": 0}, {"output": "loud"}, {"grace_s": -1.0}], ids=str)
def test_wrong_settings(settings):
    """A wrong setting is refused when the spec is built."""
    with pytest.raises(ConfigError, match="expected"):
        LaunchSpec(target=SCRIPT, **settings)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"elastic": "5:3"}, "expected elastic MIN:MAX with 1 <= MIN <= MAX, got '5:3'"),
        ({"elastic": "0:3"}, "expected elastic MIN:MAX"),
        ({"elastic": "3:4"}, r"expected 3 to 4 workers \(elastic=3:4\), got 2"),
        ({"elastic": "1:2", "live": "off"}, "here none does: live is 'off'"),
        ({"elastic": "1:2", "workers": 1}, "here none does: there is one worker"),
        ({"spares": -1}, "spares"),
    ],
    ids=str,
)
def test_wrong_bounds(settings, told):
    """Bounds that are none, or for a world that cannot change."""
    assert LaunchSpec(target=SCRIPT, workers=2, live="auto", elastic="1:2").elastic == "1:2"
    with pytest.raises(ConfigError, match=told):
        LaunchSpec(target=SCRIPT, **({"workers": 2, "live": "auto"} | settings)).check_elastic()


def test_spares_need_others(tmp_path):
    """One worker alone has none, which is said before anything starts; it may have others on other hosts."""
    (tmp_path / "never.py").write_text("raise AssertionError")
    alone = LaunchSpec(target=ScriptTarget(path=str(tmp_path / "never.py")), live="auto", spares=1)
    with pytest.raises(ConfigError, match="here none does: there is one worker"):
        run_local(alone)
    with pytest.raises(ConfigError, match="here none does: live is 'off'"):
        LaunchSpec(target=SCRIPT, spares=1)


def test_missing_targets(tmp_path):
    """A missing script, a folder and an unknown module are refused before any process starts."""
    for target in (ScriptTarget(path=str(tmp_path / "no.py")), ScriptTarget(path=str(tmp_path))):
        with pytest.raises(ConfigError, match=r"expected a Python file .* got .* Hint"):
            check_target(target)
    with pytest.raises(ConfigError, match="no module named 'no_such_module'"):
        check_target(ModuleTarget(name="no_such_module.sub"))
    check_target(ModuleTarget(name="json.tool"))


def test_resolve_workers():
    """Numbers pass, auto is capped by the replicas, and more workers than replicas are refused."""
    assert resolve_workers("3") == 3
    assert resolve_workers(2, 2) == 2
    assert resolve_workers("auto", 1) == 1
    assert 1 <= resolve_workers("auto") <= 4096
    for workers, replicas in (("many", None), (0, None), (4, 2), ("auto", 0)):
        with pytest.raises(ConfigError):
            resolve_workers(workers, replicas)


def test_launcher_is_light():
    """The launcher and its command line import neither torch nor numpy."""
    code = (
        "import sys, unisono.cli.run, unisono.launchers.api; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
