"""``unisono checkpoint`` tells what is there, judges it, and proves that it can be gone on from."""

import json
import shutil

import pytest
import torch
from click.testing import CliRunner

import unisono
from unisono.checkpoint.store import list_steps
from unisono.cli.main import unisono as command
from unisono.data.sets.digits import load_digits
from unisono.recipes.catalog import Options
from unisono.recipes.digits import train


def call(*arguments):
    done = CliRunner().invoke(command, ["checkpoint", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The run directory of a short digits run: two epochs of three steps."""
    out = tmp_path_factory.mktemp("digits") / "run"
    load_digits()
    train(
        Options(recipe="digits", model="cnn", epochs=2, batch_size=64, replicas=4, limit=150, threads=1, out=str(out))
    )
    return out


@pytest.fixture
def run(finished, tmp_path):
    """A copy that a test may break."""
    return shutil.copytree(finished, tmp_path / "run")


def test_list(run):
    """One line for each, newest first, with metrics; JSON for programs; a damaged manifest is named."""
    code, text, _ = call("list", run)
    assert code == 0
    lines = text.splitlines()
    assert [line.split()[0] for line in lines] == ["step", "6", "3"]
    assert "test_accuracy" in lines[1]
    rows = json.loads(call("list", run, "--json")[1])
    assert [row["step"] for row in rows] == [6, 3]
    assert [(row["epoch"], row["parent_step"], row["problem"]) for row in rows] == [(2, 3, None), (1, None, None)]
    (list_steps(run / "checkpoints")[0][1] / "manifest.json").write_text("{")
    assert "manifest.json" in call("list", run / "checkpoints")[1].splitlines()[1]


def test_verify(run):
    """Whole checkpoints are said to be whole; one flipped bit is found, named, and gives exit code 1."""
    assert call("verify", run)[:2] == (0, call("verify", run)[1])
    assert call("verify", run)[1].endswith("2 of 2 checkpoints are whole\n")
    file = list_steps(run / "checkpoints")[1][1] / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    code, text, _ = call("verify", run)
    assert code == 1
    assert "model.safetensors is damaged" in text
    told = json.loads(call("verify", run, "--json")[1])
    assert [row["problem"] is None for row in told["checkpoints"]] == [True, False]
    assert told["valid"] is False


def test_rehearse(run):
    """The step after a checkpoint is run on a copy, and is the ledger's."""
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    code, text, error = call("rehearse", run)
    assert code == 0, error
    assert text == "step 4 is the same as in the ledger, to the last bit\n"
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_rehearse_in_the_middle_of_a_round(tmp_path):
    """The run's strategy and its options are taken from the score."""
    out = tmp_path / "run"
    islands = unisono.strategy("exact", island_steps=2, outer_momentum=0.5)
    with pytest.warns(UserWarning, match="after its islands have met"):
        train(Options(recipe="digits", model="cnn", epochs=3, batch_size=64, replicas=4, limit=150, threads=1,
                      out=str(out), strategy=islands))  # fmt: skip
    code, text, error = call("rehearse", out, "--step", 6)
    assert code == 0, error
    assert text == "step 7 is the same as in the ledger, to the last bit\n"


@pytest.mark.slow
def test_rehearse_sees_a_difference(run):
    """The control: a ledger that says otherwise is noticed, with the name of the field."""
    ledger = (run / "ledger.jsonl").read_text().splitlines()
    told = json.loads(ledger[3])
    told["weights"] = told["weights"][::-1]
    (run / "ledger.jsonl").write_text("\n".join([*ledger[:3], json.dumps(told), *ledger[4:]]) + "\n")
    code, text, _ = call("rehearse", run, "--json")
    assert code == 1
    assert json.loads(text)["differing"] == ["weights"]


def test_rehearse_has_nothing_to_compare_with(run):
    """Where the ledger knows no next step, that is said; also for a step that is not there."""
    assert call("rehearse", run, "--step", 6)[0] == 2
    code, _, error = call("rehearse", run, "--step", 5)
    assert code == 2
    assert "one of the steps 6, 3, got --step 5" in error
    shutil.rmtree(list_steps(run / "checkpoints")[1][1])
    assert "nothing to compare with" in call("rehearse", run)[2]


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_export(run, tmp_path, suffix):
    """The weights of the newest, or of a chosen step, in a plain file that `load_weights` takes."""
    file = tmp_path / f"weights{suffix}"
    code, text, _ = call("export", run, file)
    assert code == 0
    assert text.startswith("step 6: ")
    from unisono.checkpoint.format import fingerprint
    from unisono.recipes.digits import DigitsCNN

    model = DigitsCNN()
    unisono.load_weights(model, file)
    assert fingerprint(model) == json.loads((run / "result.json").read_text())["fingerprint"]
    before = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert call("export", run, file, "--step", 3)[0] == 0
    unisono.load_weights(model, file)
    assert not torch.equal(before, torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert call("export", run, tmp_path / "x.npz")[0] == 2


def test_prune(run):
    """Old ones go, the newest and the best stay; a rehearsal changes nothing; damage stops it."""
    assert json.loads(call("prune", run, "--keep", 1, "--dry-run", "--json")[1])["removed"][0].startswith(
        "step-00000003"
    )
    assert [step for step, _ in list_steps(run / "checkpoints")] == [6, 3]
    assert call("prune", run, "--keep", 0)[0] == 2
    assert call("prune", run, "--keep", 1, "--best", "test_loss", "--best-mode", "max")[0] == 0
    assert [step for step, _ in list_steps(run / "checkpoints")] == [6, 3]
    code, text, _ = call("prune", run, "--keep", 1)
    assert code == 0
    assert "removed step-00000003" in text
    assert [step for step, _ in list_steps(run / "checkpoints")] == [6]
    (list_steps(run / "checkpoints")[0][1] / "state.json").unlink()
    assert call("prune", run, "--keep", 1)[0] == 1


def test_a_ledger_whose_end_is_lost(run):
    """Half of its last line is gone, or all: both are told, and the whole one is not."""
    ledger = run / "ledger.jsonl"
    whole = ledger.read_bytes()
    last = len(whole.splitlines())
    for content in (whole[:-20], b"".join(whole.splitlines(keepends=True)[:-1])):
        ledger.write_bytes(content)
        code, text, _ = call("verify", run)
        assert code == 1
        assert f"ledger.jsonl  ends at step {last - 1}; the newest checkpoint is of step {last}, whose line" in text
    ledger.write_bytes(whole)
    assert call("verify", run)[0] == 0


@pytest.mark.parametrize("verb", ["list", "verify", "rehearse", "prune"])
def test_no_run_directory(tmp_path, verb):
    """A directory without checkpoints is wrong usage, named."""
    code, _, error = call(verb, tmp_path)
    assert code == 2
    assert str(tmp_path) in error
