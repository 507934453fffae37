"""What is changed in torch: while a run is open, what the table says; nothing where nobody wants it."""

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import unisono
from unisono.determinism.torch_changes import TORCH_CHANGES
from unisono.environment import wants_plain_torch
from unisono.errors import WorldError

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "unisono"

# What stands under which name in torch's rooms and in the classes and functions that are found there. Modules do not
# count, nor what is inside of objects that were not there before: whoever has put those there is seen himself.
STATE = """
import json, sys, types
import torch, torch.amp, torch.distributed, torch.distributed._functional_collectives
from torch import nn
from torch.optim import lr_scheduler, optimizer
PLACES = [torch, torch.Tensor, nn, nn.functional, torch.optim, optimizer, lr_scheduler, torch.amp, torch.autograd,
    torch.autograd.graph, torch.autograd.function, torch.distributed, torch.distributed.distributed_c10d,
    torch.distributed._functional_collectives, torch.futures, torch.overrides, torch.utils.deterministic]
kept = []
def state():
    found = {("finder", id(finder)): ("sys.meta_path", finder) for finder in sys.meta_path}
    found |= {("hook", key): ("step hooks", hook) for key, hook in optimizer._global_optimizer_pre_hooks.items()}
    found |= {("sys", None): 0, ("finder", None): 0, ("hook", None): 0}
    todo = list(PLACES)
    while todo:
        each = todo.pop()
        if (id(each), None) in found:
            continue
        found[id(each), None] = 0
        title = getattr(each, "__module__", "") + "." + getattr(each, "__qualname__", each.__name__)
        for name, value in vars(each).items():
            if not isinstance(value, types.ModuleType):
                found[id(each), name] = (title + "." + name, value)
            if isinstance(value, (type, types.FunctionType)) and str(value.__module__).startswith("torch"):
                todo.append(value)
    kept.append(found)
    return found
def changed(before, now):
    ignored = {"__warningregistry__", "__abstractmethods__", "_abc_impl", "__annotations__", "next_id", None}
    names = set()
    for key in before.keys() | now.keys():
        if (key[0], None) in before and key[1] not in ignored:
            was, here = before.get(key, (None, kept)), now.get(key, (None, kept))
            if was[1] is not here[1]:
                names.add(was[0] or here[0])
    return sorted(names)
def train(step):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    return step(model, optimizer, schedule)
def plain(model, optimizer, schedule):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step(); schedule.step(); optimizer.zero_grad(); optimizer.load_state_dict(optimizer.state_dict())
"""

WARM = "train(plain), train(plain)\n"
"""What torch itself changes when it is first used; its compiler, which comes so, wraps more for the second time."""

RUN = """
import unisono
from unisono.determinism import backward, compiler, optimizer_step
data = unisono.ArrayDataset(torch.linspace(-1, 1, 36).view(12, 3), torch.linspace(0, 1, 12).view(12, 1))
run = unisono.Run(seed=3, replicas=2)
def own(model, optimizer, schedule):
    run.prepare(model, optimizer, schedule)
    for batch in run.steps(run.loader(data, batch_size=6), epochs=2):
        run.step(batch, lambda micro: (model(micro.x) - micro.y).square().mean())
    return run.fingerprint()
fingerprint = train(own)
opened = state()
shortcuts = [each.SHORTCUT.is_open for each in (backward, compiler, optimizer_step)]
run.close()
"""
TOLD = """
print(json.dumps({"open": changed(before, opened), "closed": changed(before, state()), "shortcuts": shortcuts,
    "now": [each.SHORTCUT.is_open for each in (backward, compiler, optimizer_step)],
    "finders": [type(each).__module__ for each in sys.meta_path],
    "compiler": "torch._dynamo" in sys.modules, "fingerprint": fingerprint}))
"""


def alone(program, **variables):
    """Run a program in a process of its own and return what it printed, as JSON."""
    names = ("TORCHINDUCTOR_DETERMINISTIC", "UNISONO_PLAIN_TORCH")
    environ = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environ | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def usual():
    return alone(STATE + WARM + "before = state()\n" + RUN + TOLD)


@pytest.fixture(scope="module")
def plain():
    return alone(STATE + WARM + "before = state()\n" + RUN + TOLD, UNISONO_PLAIN_TORCH="1")


@pytest.mark.slow
def test_with_the_switch_torch_is_as_it_was(plain):
    """While the run is open and after it, every attribute is the one that torch has put there."""
    assert plain["open"] == plain["closed"] == []
    assert plain["shortcuts"] == plain["now"] == [False] * 3


def test_without_it_the_table_is_applied_and_undone(usual):
    """The control: the sweep sees the hooks of an open run; after the run nothing is left."""
    assert usual["closed"] == [] and usual["now"] == [False] * 3
    assert usual["shortcuts"] == [True] * 3
    words = next(change.touches for change in TORCH_CHANGES if change.name == "hooks inside a loss function")
    for found in usual["open"]:
        name = found.rpartition(".")[2]
        assert name in words or found == "step hooks", found
    for name in ("_engine_run_backward", "_rank_not_in_group", "_resolve_group", "__init__", "zero_grad", "scale"):
        assert any(found.endswith(name) for found in usual["open"]), name
    assert any(found == "step hooks" for found in usual["open"])


def test_the_bits_are_the_same(usual, plain):
    """Nothing in the table changes a bit."""
    assert usual["fingerprint"] == plain["fingerprint"]


@pytest.mark.slow
def test_the_compiler_is_kept_out_of_open_runs_alone():
    """Optimizers of an open run do not import it, nor leave a trace; with the switch they import it as always."""
    program = STATE + "before = state()\n" + RUN + TOLD
    spared, usual = alone(program), alone(program, UNISONO_PLAIN_TORCH="1")
    assert (spared["compiler"], usual["compiler"]) == (False, True)
    assert spared["fingerprint"] == usual["fingerprint"]
    for told, is_there in ((spared["open"], True), (spared["closed"], False)):
        assert any(found.endswith("__dynamo_disable") and "Optimizer." in found for found in told) == is_there
        assert ("sys.meta_path" in told) == is_there
    assert "unisono.determinism.compiler" not in spared["finders"]


IMPORT = (
    STATE
    + """
before = state()
import unisono.train.run
{planted}
print(json.dumps(changed(before, state())))
"""
)


@pytest.mark.slow
def test_an_import_changes_nothing():
    """Only what a run does may change torch; a change that is planted is seen, whatever its kind."""
    assert alone(IMPORT.replace("{planted}", "")) == []
    planted = {
        "torch.autograd.backward = lambda *_: None": "torch.autograd.backward",
        "nn.Module.zero_grad = lambda self: None": "torch.nn.modules.module.Module.zero_grad",
        "torch.optim.Optimizer.load_state_dict.__wrapped__.__dynamo_disable = 1": "__dynamo_disable",
        "sys.meta_path.insert(0, unisono)": "meta_path",
    }
    told = alone(IMPORT.replace("{planted}", "\n".join(planted)))
    for name in planted.values():
        assert any(name in found for found in told), (name, told)


def test_the_docs_show_the_table():
    """Each change stands in docs/determinism.md as the table says it."""
    text = (ROOT / "docs" / "determinism.md").read_text()
    for change in TORCH_CHANGES:
        cells = (change.name, change.touches, change.reason, change.guard, change.without)
        assert f"| {' | '.join(cells)} |" in text
    for file in ELSEWHERE:
        assert f"`{file}`" in text


def test_the_switch_is_a_number():
    """Unset or 0: torch is changed; 1: it is not; anything else is refused."""
    assert [wants_plain_torch(found) for found in ({}, {"UNISONO_PLAIN_TORCH": "0"}, {"UNISONO_PLAIN_TORCH": "1"})] == [
        False, False, True,
    ]  # fmt: skip
    with pytest.raises(WorldError, match=r"expected UNISONO_PLAIN_TORCH to be a whole number, got 'yes'"):
        wants_plain_torch({"UNISONO_PLAIN_TORCH": "yes"})


def test_a_run_hears_of_it(monkeypatch):
    """The variable counts when a run begins, also for ranks in threads of one process; the run says what is off."""
    monkeypatch.setenv("UNISONO_PLAIN_TORCH", "1")
    from unisono.determinism import optimizer_step

    with pytest.warns(UserWarning, match="inside a loss function are not refused") as told, unisono.Run() as run:
        assert run.world.world_size == 1
        assert not optimizer_step.SHORTCUT.is_open or _another_run_is_open()
    assert [found.filename for found in told] == [__file__]


def _another_run_is_open():
    from unisono.determinism import torch_changes

    return torch_changes._num_open > 0


ELSEWHERE = {
    "collectives/shm/gloo_hook.py": "puts shared memory in gloo's place, where --backend shm asks for it",
    "collectives/shm/in_place_of_gloo.py": "names such a group gloo",
    "data/slots.py": "lets default_collate stack in memory of its own, in loader processes alone",
}
"""Files outside of `determinism/` that change torch."""


def changes_of(source: str) -> list[str]:
    """Return the lines that may change torch: assignments to attributes of its names, setattr, import finders."""
    tree = ast.parse(source)
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names if "torch" in alias.name}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            names |= {alias.asname or alias.name for alias in node.names}
    found = []
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            root = target
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if root is not target and isinstance(root, ast.Name) and root.id in names:
                found.append(ast.unparse(node))
        if isinstance(node, ast.Call) and re.fullmatch(r"setattr|sys\.meta_path\.\w+", ast.unparse(node.func)):
            found.append(ast.unparse(node))
        if isinstance(node, ast.Attribute) and node.attr == "pg_map":
            found.append(ast.unparse(node))
    return found


HARMLESS = {
    "launchers/cell.py": ("setattr(error, '_render_traceback_'",),  # an error of ours, for IPython
    "strategies/data_parallel.py": ("setattr(copy, name,",),  # a copy of the user's model
    "experiments/chaos/dying.py": ("setattr(owner, name, around(",),  # of our own, in workers that are to die
    "launchers/worker/child.py": ("LOADING_MARK",),
    "metrics/adapter.py": ("setattr(owner, name,",),  # a metric's own state
    "train/run_directory/newcomers.py": ("setattr(target, name, value)",),  # the run's own files
    "strategies/parts/front.py": ("setattr(self.__dict__['plain'], name, value)",),  # the user's model
}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_torch_is_changed_in_one_room(path):
    """Outside of `determinism/` nothing assigns to what torch has defined, but in files that the docs name."""
    name = path.relative_to(SOURCE).as_posix()
    harmless = HARMLESS.get(name, ())
    found = [line for line in changes_of(path.read_text()) if not any(known in line for known in harmless)]
    if not name.startswith("determinism/"):
        assert bool(found) == (name in ELSEWHERE), found


@pytest.mark.parametrize("line", [
    "import torch\ntorch.autograd.backward = None", "from torch import nn\nnn.Module.zero_grad = None",
    "setattr(place, name, value)", "import sys\nsys.meta_path.insert(0, finder)",
    "import torch.optim as o\no.Optimizer.step = None", "import torch\ntorch.nn.x += 1",
])  # fmt: skip
def test_a_change_elsewhere_would_be_seen(line):
    """The control of the rule above."""
    assert changes_of(line)
    assert not changes_of("import torch\nx = torch.ones(3)\nself.torch = 1\nmodel.weight = torch.ones(1)")
