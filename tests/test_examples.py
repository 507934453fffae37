"""The examples do what they say: all of them run, as programs of their own, and end with what they promise."""

import importlib.util
import py_compile
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hosts import Hosts
from ranks import run_threads

EXAMPLES = Path(__file__).parent.parent / "examples"
FINGERPRINT = re.compile(r"\b[0-9a-f]{64}\b")
SHARE = re.compile(r"([0-9.]+)% right")


def run(program: str, directory: Path, *start: str) -> str:
    """Run an example in a directory of its own and return what it prints."""
    command = [sys.executable, *start, str(EXAMPLES / program)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


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


def test_accelerate_script(capsys):
    """One rank and three: the same fingerprint and accuracy, printed once for each epoch."""
    pytest.importorskip("sklearn", reason="needs the extra recipes")
    example = load("accelerate_script")
    expected = run_threads(lambda transport: example.main(1, transport=transport), 1)[0]
    assert run_threads(lambda transport: example.main(1, transport=transport), 3) == [expected] * 3
    assert expected[1] > 0.7
    assert len(SHARE.findall(capsys.readouterr().out)) == 2


def test_fabric_script(capsys):
    """One rank and three: the same fingerprint and accuracy."""
    pytest.importorskip("sklearn", reason="needs the extra recipes")
    example = load("fabric_script")
    expected = run_threads(lambda transport: example.main(1, transport=transport), 1)[0]
    assert run_threads(lambda transport: example.main(1, transport=transport), 3) == [expected] * 3
    assert expected[1] > 0.7
    assert len(SHARE.findall(capsys.readouterr().out)) == 2


@pytest.mark.slow
def test_the_program_of_the_migration_page_trains_with_our_import(tmp_path):
    """Nothing but accelerate's import lines is changed: two processes and one come to the same weights."""
    text = (EXAMPLES / "migration" / "accelerate_before.py").read_text()
    changed = re.sub(r"^from accelerate", "from unisono.compat.accelerate", text, flags=re.M)
    assert changed.count("unisono") == 2
    (tmp_path / "script.py").write_text(changed)
    shutil.copy(EXAMPLES / "migration" / "digits.py", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "unisono", "verify", "-n", "1,2", "script.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=230, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(set(FINGERPRINT.findall(done.stdout))) == 1
    assert done.stdout.splitlines()[-1] == "equal"


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_every_example_compiles_and_says_what_to_expect(path, tmp_path):
    """Each is Python and begins with what it shows; those of the top folder tell how long they take."""
    py_compile.compile(str(path), cfile=str(tmp_path / "compiled"), doraise=True)
    text = path.read_text()
    assert text.startswith('"""')
    if path.parent == EXAMPLES:
        assert re.search(r"Expect .* on\s+2 cores", text.split('"""')[1], re.S)


@pytest.mark.parametrize(
    "program",
    [
        "tour/words.py",
        *(
            pytest.param(f"tour/{name}.py", marks=pytest.mark.slow)
            for name in ("components", "ddp_by_hand", "from_scratch", "strategies", "text_on_many")
        ),
    ],
)
def test_stops_of_the_tour(program, tmp_path):
    """They check what they tell by assertions of their own."""
    assert run(program, tmp_path)


BY_HAND = "tour/mnist_by_hand.py"
WHOLE_BUFFERS = """
def ring_all_reduce(values: Tensor) -> None:
    rank, size, held = dist.get_rank(), dist.get_world_size(), values.clone()
    for _ in range(size - 1):
        arrived, sent = torch.empty_like(held), dist.isend(held, (rank + 1) % size)
        dist.recv(arrived, (rank - 1) % size)
        sent.wait()
        values += arrived
        held = arrived

def average_gradients("""


@pytest.mark.slow
def test_mnist_by_hand(tmp_path):
    """On 1, 2 and 3 processes the loss falls, and the picture has a line for the training and one for the exchange."""
    pytest.importorskip("sklearn", reason="needs the extra recipes")
    settings = ["--small", "--sizes", "1,2,3", "--lr", "0.1", "--picture", "time.svg"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / BY_HAND), *settings],
        cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"(\d) processes: loss ([0-9.]+) to ([0-9.]+), ([0-9.]+)% right", done.stdout)
    assert [row[0] for row in rows] == ["1", "2", "3"]
    for _, first, last, right in rows:
        assert float(last) < 0.8 * float(first)
        assert float(right) > 40
    assert "of it averaging gradients" in (tmp_path / "time.svg").read_text()


@pytest.mark.slow
def test_the_ring_of_whole_buffers_is_noticed(tmp_path):
    """The control: with the tutorial's ring three processes hold different weights, and the driver says so."""
    pytest.importorskip("sklearn", reason="needs the extra recipes")
    broken = (EXAMPLES / BY_HAND).read_text().replace("\ndef average_gradients(", WHOLE_BUFFERS, 1)
    assert "sent.wait()" in broken
    (tmp_path / "broken.py").write_text(broken)
    done = subprocess.run(
        [sys.executable, "broken.py", "--small", "--sizes", "3", "--samples", "300", "--epochs", "1"],
        cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "the ranks hold different weights" in done.stderr
    assert "nothing was measured" in done.stderr


def test_mnist_by_hand_skips_without_mnist(tmp_path):
    """Where the four files are missing, nothing is started, and the line says what was looked for."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / BY_HAND), "--data", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("skipped, MNIST is not here: ")
    assert "--small" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "fingerprints", "right"),
    [
        ("uneven_shares.py", [2], []),
        ("pipeline.py", [3], []),
        ("fsdp.py", [1, 2], []),  # after one epoch, after two by both
        ("chaos.py", [2], []),
        ("parameter_server.py", [1, 1], [92, 88]),
        ("own_texts.py", [1], [60]),
        ("shards.py", [2], [95, 95]),
        ("gan.py", [2], [90, 90]),
        ("stream.py", [2], [90, 90]),
        ("own_images.py", [1], [95]),
        ("fine_tune.py", [1, 1, 1], [92, 90, 85]),
        ("contrastive.py", [1], [46, 88]),
        ("resnet_augmented.py", [1], [96]),
        ("vit.py", [1], [86]),
        ("language_model.py", [1], []),
        ("token_file.py", [1], []),
        ("two_losses_weighted.py", [1], []),
    ],
)
def test_examples_end_with_what_they_promise(program, fingerprints, right, tmp_path):
    """So many equal fingerprints of each kind, and at least so many percent right."""
    printed = run(program, tmp_path)
    found = FINGERPRINT.findall(printed)
    assert sorted(found.count(one) for one in set(found)) == fingerprints
    shares = [float(share) for share in SHARE.findall(printed)]
    assert len(shares) == len(right)
    assert all(share >= least for share, least in zip(shares, right, strict=True)), printed
    if program in ("language_model.py", "token_file.py"):
        assert float(re.search(r"perplexity ([0-9.]+)", printed)[1]) < 22
    if program == "two_losses_weighted.py":
        assert all(int(share) > least for share, least in zip(re.findall(r"(\d+)%", printed), (75, 45), strict=True))


@pytest.mark.slow
def test_several_machines_end_with_one_fingerprint(tmp_path):
    """Two launchers on loopback, with one process and with two, and a process alone: three lines, one fingerprint."""
    hosts = Hosts(tmp_path)
    program = EXAMPLES / "several_machines.py"
    try:
        for rank in range(2):
            hosts.start(f"host{rank}", rank=rank, workers=rank + 1, script=program)
        assert hosts.finish() == [0, 0], hosts.words()
        told = "".join(host.out_file.read_text() for host in hosts.started)
    finally:
        hosts.close()
    told += run("several_machines.py", tmp_path)
    said = re.findall(r"host (\d): (\d) of (\d) ranks, ([0-9a-f]{64})", told)
    assert sorted(one[:3] for one in said) == [("0", "1", "1"), ("0", "1", "3"), ("1", "2", "3")]
    assert len({one[3] for one in said}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raw_ddp", "torchrun", "accelerate", "lightning", "horovod", "easytext"])
def test_migrated_programs_run(name, tmp_path):
    """The program after a migration trains on two processes, to one fingerprint and a sensible accuracy."""
    printed = run(f"migration/{name}_after.py", tmp_path, "-m", "unisono", "run", "-n", "2")
    assert len(set(FINGERPRINT.findall(printed))) == 1
    found = re.search(r"accuracy ([0-9.]+)", printed)
    assert (name == "torchrun") == (found is None)
    assert found is None or float(found[1]) > 0.6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "needs", "start"),
    [
        ("raw_ddp", "torch", []),
        ("torchrun", "torch", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]),
        ("accelerate", "accelerate", ["-m", "accelerate.commands.launch", "--cpu", "--num_processes=2"]),
        ("lightning", "lightning", []),
        ("horovod", "horovod", ["-m", "horovod.runner.launch", "-np", "2", sys.executable]),
        ("easytext", "easytext", []),
    ],
)
def test_programs_before_their_migration_run(name, needs, start, tmp_path):
    """They are real programs: each runs where its library is installed."""
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed; the program is compiled only")
    run(f"migration/{name}_before.py", tmp_path, *start)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    """Every cell of the notebook runs, in order, in a kernel of its own."""
    nbclient = pytest.importorskip("nbclient", reason="needs the extra docs")
    pytest.importorskip("ipykernel", reason="needs the extra docs")
    nbformat = pytest.importorskip("nbformat", reason="needs the extra docs")
    shutil.copy(EXAMPLES / "notebook.ipynb", tmp_path)
    notebook = nbformat.read(tmp_path / "notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("69 steps" in output.get("text", "") for output in printed)
