"""What is logged is in MLflow's database and in Weights & Biases' files, by name and step; nothing goes out."""

import sys
import warnings

import pytest

from ranks import run_threads
from train.callbacks.small import fit
from unisono.callbacks import LearningRateMonitor, MLflow, TensorBoard, WandB
from unisono.collectives.places import HERE
from unisono.errors import ConfigError
from unisono.world import World

LOGGED = {"lr/0", "train/loss", "test_loss", "test_accuracy"}


@pytest.fixture
def quiet(monkeypatch):
    """Let the packages talk to nobody, and warn as they like."""
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "WANDB_ERROR_REPORTING": "false",
        "WANDB_MODE": "offline",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def first(transport, make, out):
    """Fit one epoch."""
    return fit([make(), LearningRateMonitor()], transport=transport, out=out, epochs=1)[0]["fingerprint"]


@pytest.mark.parametrize(("make", "package"), [(MLflow, "mlflow"), (WandB, "wandb"), (TensorBoard, "tensorboard")])
def test_without_the_package_it_says_what_to_install(monkeypatch, make, package):
    """Where the callback is made, on the leader, which alone needs it."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"No module named '{package}'. Hint: pip install .*'{package}"):
        make()
    monkeypatch.setattr(HERE, "world", World(rank=1, world_size=2, local_rank=1, local_world_size=2))
    make()


def test_modes():
    """Only modes that are known."""
    with pytest.raises(ConfigError, match="'offline' or 'online', got 'on'"):
        WandB(mode="on")


@pytest.mark.slow
def test_mlflow(tmp_path, quiet):
    """Every number once, at its step, over a resume and a lost checkpoint; one run, on the leader; the same bits."""
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow.tracking import MlflowClient

    out = tmp_path / "run"
    expected = run_threads(lambda transport: first(transport, MLflow, out), 2)
    assert expected == [fit(epochs=1)[0]["fingerprint"]] * 2
    for checkpoint in (out / "checkpoints").iterdir():
        checkpoint.rename(tmp_path / checkpoint.name)  # the run begins again from its start
    fit([MLflow(), LearningRateMonitor()], out=out, epochs=2)
    client = MlflowClient(tracking_uri=f"sqlite:///{out}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("unisono").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_id == (out / "mlflow-run").read_text().strip()
    assert run.data.params["replicas"] == "4"
    assert set(run.data.metrics) == LOGGED
    steps = [each.step for each in client.get_metric_history(run.info.run_id, "train/loss")]
    assert steps == [2, 4, 5, 6, 8, 10]

    def fail(output, target):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit([MLflow()], out=tmp_path / "failed", loss=fail)
    failed = (tmp_path / "failed" / "mlflow-run").read_text().strip()
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'failed'}/mlflow.db")
    assert client.get_run(failed).info.status == "FAILED"
    (out / "mlflow-run").write_text("0" * 32)
    with pytest.raises(ConfigError, match="to begin another one"):
        fit([MLflow()], out=out, epochs=3)
    with pytest.raises(ConfigError, match="expected a place"):
        fit([MLflow()])


@pytest.mark.slow
def test_wandb(tmp_path, quiet):
    """Offline files hold every name; a resumed run has the same id; the same bits."""
    pytest.importorskip("wandb")
    out = tmp_path / "run"
    expected = run_threads(lambda transport: first(transport, WandB, out), 2)
    assert expected == [fit(epochs=1)[0]["fingerprint"]] * 2
    (file,) = out.glob("wandb/offline-run-*/*.wandb")
    written = file.read_bytes()
    assert all(name.encode() in written for name in LOGGED)
    assert b"no/such/name" not in written  # the control
    fit([WandB(), LearningRateMonitor()], out=out, epochs=2)
    run_id = (out / "wandb-run").read_text().strip()
    assert {path.name for path in out.glob("wandb/offline-run-*/*.wandb")} == {f"run-{run_id}.wandb"}
    with pytest.raises(ConfigError, match="expected a folder"):
        fit([WandB()])
