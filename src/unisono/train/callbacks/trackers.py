"""What a trainer logs, for MLflow and Weights & Biases (extras ``mlflow`` and ``wandb``, imported when a run starts).

Neither sends anything anywhere unless it is told to: MLflow writes a database in the run directory, Weights & Biases
stays offline.
"""

import time
import warnings
from pathlib import Path
from typing import Any, final

from unisono.collectives.places import current_world
from unisono.errors import ConfigError
from unisono.system.files import read_file, replace_file
from unisono.system.loading import check_there, needing
from unisono.train.callbacks.base import Callback, Loop


@final
class MLflow(Callback):
    """Write every logged number to MLflow, on the leader.

    A resumed run goes on in the run it began, whose id stands in ``mlflow-run`` of the run directory. Steps that were
    logged before the interruption are not logged again: they would have the same bits.

    Args:
        tracking_uri: A database or a server; None: the database ``mlflow.db`` in the run directory.
        experiment: Name; made where it is missing.
        run_name: Of the run in MLflow; None: the run directory's name.
    """

    runs_on = "leader"

    def __init__(
        self, tracking_uri: str | None = None, *, experiment: str = "unisono", run_name: str | None = None
    ) -> None:
        if current_world().is_leader:
            check_there("mlflow")
        self._uri, self._experiment, self._run_name = tracking_uri, experiment, run_name
        self._client: Any = None
        self._run_id = ""
        self._logged: dict[str, int] = {}

    def on_run_start(self, loop: Loop) -> None:
        """Begin or go on with a run; `ConfigError` without MLflow or a place, or where the run it began is gone."""
        with needing("mlflow"):
            import mlflow.exceptions
            from mlflow.tracking import MlflowClient
        folder = loop.run.directory
        if self._uri is None and folder is None:
            raise ConfigError("expected a place for MLflow, got none. Hint: MLflow(tracking_uri), or Run(out=).")
        uri = self._uri or f"sqlite:///{folder and folder.resolve()}/mlflow.db"
        client = MlflowClient(tracking_uri=uri)
        known = folder and folder / "mlflow-run"
        recorded = read_file(known) if known else None
        if known and recorded is not None:
            self._run_id = recorded.decode().strip()
            try:
                found = client.get_run(self._run_id)
            except mlflow.exceptions.MlflowException as error:
                raise ConfigError(
                    f"expected MLflow's run {self._run_id} (told by {known}) in {uri}, got: {error}. "
                    f"Hint: give the tracking_uri it was begun with, or remove {known} to begin another one."
                ) from error
            client.update_run(self._run_id, status="RUNNING")
            for name in found.data.metrics:
                self._logged[name] = max(each.step for each in client.get_metric_history(self._run_id, name))
        else:
            self._run_id = self._begin(client, loop)
            if known:
                replace_file(known, f"{self._run_id}\n".encode())
        client.set_tag(self._run_id, "world_size", str(loop.run.world.world_size))
        self._client = client

    def _begin(self, client: Any, loop: Loop) -> str:
        experiment = client.get_experiment_by_name(self._experiment)
        number = client.create_experiment(self._experiment) if experiment is None else experiment.experiment_id
        name = self._run_name or (loop.run.directory and loop.run.directory.resolve().name)
        run_id: str = client.create_run(number, run_name=name).info.run_id
        for key, value in _facts(loop).items():
            client.log_param(run_id, key, str(value)[:500])
        return run_id

    def on_log(self, loop: Loop, values: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now_ms = time.time_ns() // 1_000_000
        new = [
            Metric(name, value, now_ms, loop.step)
            for name, value in values.items()
            if loop.step > self._logged.get(name, -1)
        ]
        if new:
            self._client.log_batch(self._run_id, metrics=new)

    def on_run_end(self, loop: Loop) -> None:
        self._client.set_terminated(self._run_id, "FINISHED")
        self._client = None

    def close(self) -> None:
        """See `Callback`; a run that has not ended has failed."""
        client, self._client = self._client, None
        if client is not None:
            try:
                client.set_terminated(self._run_id, "FAILED")
            except Exception as error:  # noqa: BLE001 - the run's own failure must be the one that is seen
                warnings.warn(f"MLflow was not told that the run failed: {error}", stacklevel=2)


@final
class WandB(Callback):
    """Write every logged number to Weights & Biases, on the leader; offline unless told otherwise.

    A resumed run writes under the id it began with, which stands in ``wandb-run`` of the run directory. Only what is
    logged is recorded: no code, no console, no facts of the machine.

    Args:
        project: Name.
        mode: ``offline`` writes files that ``wandb sync`` can send later; ``online`` sends.
        folder: For ``wandb/``; None: the run directory.
        run_name: Of the run; None: the run directory's name.
        entity: User or team, where ``online``.
    """

    runs_on = "leader"

    def __init__(
        self,
        project: str = "unisono",
        *,
        mode: str = "offline",
        folder: str | Path | None = None,
        run_name: str | None = None,
        entity: str | None = None,
    ) -> None:
        if mode not in ("offline", "online"):
            raise ConfigError(f"expected mode 'offline' or 'online', got {mode!r}.")
        if current_world().is_leader:
            check_there("wandb")
        self._project, self._mode, self._run_name, self._entity = project, mode, run_name, entity
        self._folder = None if folder is None else Path(folder)
        self._run: Any = None

    def on_run_start(self, loop: Loop) -> None:
        """Begin or go on with a run; `ConfigError` where Weights & Biases is not installed, or there is no folder."""
        with needing("wandb"):
            import wandb
        folder = self._folder or loop.run.directory
        if folder is None:
            raise ConfigError("expected a folder for Weights & Biases, got none. Hint: WandB(folder=), or Run(out=).")
        folder.mkdir(parents=True, exist_ok=True)
        known = loop.run.directory and loop.run.directory / "wandb-run"
        recorded = read_file(known) if known else None
        run_id = None if recorded is None else recorded.decode().strip()
        library: Any = wandb
        quiet = library.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True
        )
        self._run = library.init(
            project=self._project, entity=self._entity, mode=self._mode, dir=str(folder.resolve()), id=run_id,
            name=self._run_name or folder.resolve().name, config=_facts(loop), settings=quiet,
            resume="allow" if self._mode == "online" else None,
        )  # fmt: skip
        if known and run_id is None:
            replace_file(known, f"{self._run.id}\n".encode())

    def on_log(self, loop: Loop, values: dict[str, float]) -> None:
        self._run.log(values, step=loop.step)

    def on_run_end(self, loop: Loop) -> None:
        run, self._run = self._run, None
        run.finish()

    def close(self) -> None:
        """See `Callback`; a run that has not ended has failed."""
        run, self._run = self._run, None
        if run is not None:
            try:
                run.finish(exit_code=1)
            except Exception as error:  # noqa: BLE001 - the run's own failure must be the one that is seen
                warnings.warn(f"Weights & Biases was not told that the run failed: {error}", stacklevel=2)


def _facts(loop: Loop) -> dict[str, Any]:
    return {"seed": loop.run.seed, "replicas": loop.run.replicas, "epochs": loop.epochs, **loop.run.settings}
