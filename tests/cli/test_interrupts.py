"""Ctrl-C at several instants, of real processes: what is told, the code, and that nobody is left behind."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# SIGINT may be ignored in us (a test run in the background), and would be in what we start.
START = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
START += "from unisono.__main__ import main; main()"
TRAIN = "train digits -n 2 --batch-size 16 --out run"


def session_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, ValueError):
        return None


PROGRAM = """
import os, sys, time, torch, unisono
from pathlib import Path
from torch.nn.functional import cross_entropy

begun = 0

def linger(where):
    if where == sys.argv[1] and begun > 2 and not Path("pressed").exists():
        Path(f"within-{run.world.rank}").touch()
        until = time.monotonic() + 120
        while not Path("pressed").exists() and time.monotonic() < until:
            time.sleep(0.001)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        linger("data")
        return xs[index], ys[index]

class Counter:
    def state_dict(self):
        linger("saving")
        return {"n": 1}
    def load_state_dict(self, state):
        pass

run = unisono.Run(seed=0, replicas=2, out="run", checkpoint_every=4)
model = torch.nn.Linear(3, 2)
run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
run.register("counter", Counter())
g = torch.Generator().manual_seed(0)
xs, ys = torch.randn(64, 3, generator=g), torch.randint(2, (64,), generator=g)

def predict(micro):
    linger("evaluation")
    return model(micro.x), micro.y

for batch in run.steps(run.loader(Data(), batch_size=16), epochs=3):
    begun = batch.step
    run.step(batch, lambda micro: cross_entropy(model(micro.x), micro.y))
    if batch.step % 4 == 0:
        run.evaluate(Data(), predict, {"accuracy": unisono.Accuracy()})
if run.world.is_leader:
    print(run.fingerprint())
"""


def is_probe(path):
    """Python's `tempfile` tries a directory with such a file, which stays where a worker is killed just then."""
    return re.fullmatch("[a-z0-9_]{8}", path.name) is not None and path.read_bytes() in (b"", b"blat")


def interrupt(folder, typed, sign, signum=signal.SIGINT):
    """Start a verb, press Ctrl-C when `sign` holds of what it has said and left; return code and what it said.

    Or send the verb another signal.
    """
    said, own = folder / "said", folder / "tmp"
    own.mkdir()
    with said.open("w") as error:
        verb = subprocess.Popen(
            [sys.executable, "-c", START, *shlex.split(typed)], cwd=folder, stdout=subprocess.DEVNULL, stderr=error,
            start_new_session=True, env={**os.environ, "TMPDIR": str(own)},
        )  # fmt: skip
    while not sign(folder, said.read_text()):
        assert verb.poll() is None, said.read_text()
        time.sleep(0.001)
    if signum == signal.SIGINT:
        os.killpg(verb.pid, signum)  # as a terminal does: the workers get it, too
    else:
        verb.send_signal(signum)
    (folder / "pressed").touch()
    code = verb.wait(200)
    assert [path for path in Path("/proc").glob("[0-9]*") if session_of(path.name) == verb.pid] == []
    assert [path.name for path in own.iterdir() if not is_probe(path)] == []
    return code, said.read_text().splitlines()


def has(name):
    return lambda folder, _: (folder / name).exists()


def told(text):
    return lambda _, said: text in said


@pytest.mark.parametrize("sign", [told(", batch "), has("run/run.toml")], ids=["first line", "directory"])
def test_before_the_first_step(tmp_path, sign):
    """Nothing is saved yet: that is told, with the command."""
    code, lines = interrupt(tmp_path, TRAIN, sign)
    assert code == 130
    assert lines[-1] == (
        f"unisono train: interrupted. run holds no checkpoint yet. Again, from the beginning: unisono {TRAIN}"
    )


def test_terminated_before_the_first_step(tmp_path):
    """SIGTERM says the same as Ctrl-C."""
    code, lines = interrupt(tmp_path, TRAIN, told(", batch "), signal.SIGTERM)
    assert code == 143
    assert lines[-1] == (
        f"unisono train: terminated. run holds no checkpoint yet. Again, from the beginning: unisono {TRAIN}"
    )


LOADING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
module, signum = sys.argv[1], int(sys.argv[2])
del sys.argv[1:3]
class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signum)
sys.meta_path.insert(0, Presses())
sys.modules.pop(module, None)
from unisono.__main__ import main
main()
"""


@pytest.mark.parametrize(("signum", "how"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
@pytest.mark.parametrize(
    ("module", "who"),
    [("typing", ""), ("unisono.cli.main", ""), ("unisono.cli.run", ""), ("unisono.nodes.start", " run")],
)
def test_while_it_is_being_loaded(tmp_path, module, who, signum, how):
    """One line and no frame of ours, whatever is being imported."""
    typed = [sys.executable, "-c", LOADING, module, str(int(signum)), "run", "-n", "2", "my job.py"]
    (tmp_path / "my job.py").write_text("")
    done = subprocess.run(typed, cwd=tmp_path, capture_output=True, text=True)
    again = "Nothing was begun. Again: unisono run -n 2 'my job.py'"
    assert (done.returncode, done.stdout) == (128 + signum, "")
    assert done.stderr.lstrip() == f"unisono{who}: {how}. {again}\n"  # after a blank line of click's


@pytest.mark.slow
@pytest.mark.parametrize("sign", [has("run/ledger.jsonl"), told("train_loss")], ids=["within steps", "at an epoch"])
def test_in_the_midst(tmp_path, sign):
    """The step in progress is finished and saved (75), and the command that is told goes on where it stopped."""
    code, lines = interrupt(tmp_path, TRAIN, sign)
    assert code == 75
    assert " and saved." in lines[-2]
    assert lines[-1] == f"unisono train: go on with: unisono {TRAIN}"
    step = int(lines[-2].split("step ")[1].split(",")[0])
    assert any((tmp_path / "run" / "checkpoints").glob(f"step-{step:08}.*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "sign", "kept"),
    [
        ("verify digits -n 1,2", "[2/2]", "Nothing is kept of the runs so far. Again: "),
        ("bench scaling digits -n 1,2", "worker", "Nothing is kept of the measurement. Again: "),
        ("train digits -n 2", ", batch ", "Nothing is kept; --out DIR keeps runs. Again: "),
    ],
)
def test_what_keeps_nothing(tmp_path, typed, sign, kept):
    """Code 130, and the command that begins anew; no temporary file is left."""
    code, lines = interrupt(tmp_path, typed, told(sign))
    assert (code, lines[-1]) == (130, f"unisono {typed.split(' digits')[0]}: interrupted. {kept}unisono {typed}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The fingerprint of `PROGRAM` where nobody presses anything."""
    folder = tmp_path_factory.mktemp("undisturbed")
    program = [sys.executable, "-c", PROGRAM, "nowhere"]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=300, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("where", ["evaluation", "saving", "data"])
def test_within(tmp_path, where, undisturbed):
    """Ctrl-C while a run evaluates, saves or reads: the step is kept, and the command that is told ends as ever."""
    (tmp_path / "train.py").write_text(PROGRAM)
    typed = f"run -n 2 train.py {where}"
    code, lines = interrupt(tmp_path, typed, lambda folder, _: any(folder.glob("within-*")))
    assert code == 75, lines
    assert lines[-1] == f"unisono run: go on with: unisono {typed}"
    step = int(lines[-2].split("step ")[1].split(",")[0])
    assert any((tmp_path / "run" / "checkpoints").glob(f"step-{step:08}.*"))
    done = [sys.executable, tmp_path / "train.py", where]  # on one worker
    assert (
        subprocess.run(done, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True).stdout
        == undisturbed
    )


LOADS_TORCH = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class PressedBefore:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, PressedBefore())
import unisono
unisono.Run
"""


@pytest.mark.parametrize("module", ["torch", "unisono.system.loading", "json"])
def test_ctrl_c_while_a_program_loads_torch(module):
    """By a name of ours: the program ends by the signal, without a word. The control: of an import of its own, told."""
    start = "import json; " * (module == "json")
    program = LOADS_TORCH.replace("import unisono", f"{start}import unisono")
    ended = subprocess.run([sys.executable, "-c", program, module], capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGINT
    assert ("Traceback" in ended.stderr) == (module == "json"), ended.stderr
