"""A recipe as a job: checked before anything starts, then run on the workers of one host or of several."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.nodes.start import start
from unisono.strategies.catalog import all_options, find

if TYPE_CHECKING:
    from unisono.nodes.plan import NodesPlan
    from unisono.recipes.catalog import Options
    from unisono.strategies.options import StrategyOptions

_OF_THE_PLACE = ("out", "cache", "allow_drift", "offline", "strategy")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainJob:
    """A recipe ready to start: its options, with the data checked; workers on this host, and how it meets others."""

    options: "Options"
    workers: int
    nodes: "NodesPlan | None" = None


def take_strategy(given: dict[str, Any]) -> "StrategyOptions":
    """Take ``strategy`` and its options out of what a command was given."""
    chosen = {name: given.pop(name, None) for name in all_options()}
    return find(given.pop("strategy", None) or "exact", {k: v for k, v in chosen.items() if v is not None})


def plan(
    recipe: str, workers: str, given: dict[str, Any], devices: tuple[str, ...] | None = None,
    nodes: "NodesPlan | None" = None,
) -> TrainJob:  # fmt: skip
    """Check recipe, settings, world and data, before anything starts."""
    from unisono.environment import default_cache
    from unisono.launchers.spec import resolve_workers
    from unisono.launchers.supervision.memory_kills import check_address_space
    from unisono.recipes.catalog import Options
    from unisono.recipes.catalog import find as find_recipe
    from unisono.recipes.sources import check_data

    found = find_recipe(recipe)
    check_address_space()  # data is read here, with NumPy
    given = dict(given)
    strategy = take_strategy(given)
    chosen = {name: value for name, value in given.items() if value is not None}
    chosen["strategy"] = strategy
    chosen["cache"] = str(default_cache())
    preset = found.preset(given.get("preset"))
    defaults = {"epochs": preset.epochs, "batch_size": preset.batch_size, "replicas": found.replicas}
    recorded = _recorded_score(given.get("out"))
    if strategy.sets_replicas:
        count = resolve_workers(workers, devices=devices)
        if workers == "auto":
            count = strategy.usual_workers(count)
        world_size = count * (nodes.max_nodes if nodes else 1)
        strategy.check(world_size)
        defaults["replicas"] = strategy.default_replicas(world_size)
    if recorded is not None:  # fixed by the first launch
        defaults["replicas"] = recorded["replicas"]
    options = Options(**{"recipe": recipe, "model": found.models[0], **defaults, **chosen})
    if recorded is not None:
        _check_score(recorded, options)
    hosts = nodes.max_nodes if nodes else 1
    if not strategy.sets_replicas:
        room = max(1, options.replicas // hosts) if workers == "auto" else options.replicas
        count = resolve_workers(workers, None if strategy.is_one_replica_enough else room, devices)
        if workers == "auto":
            count = strategy.usual_workers(count)
    strategy.place(options.replicas, count * hosts)
    check_data(options)
    return TrainJob(options=options, workers=count, nodes=nodes)


def _check_score(recorded: dict[str, Any], options: "Options") -> None:
    from unisono.errors import ScoreMismatch
    from unisono.observe.compare import diff, said_now

    recorded = said_now(recorded)
    if lines := diff({name: recorded.get(name) for name in options.score}, options.score):
        raise ScoreMismatch(
            f"{options.out} holds a run with another score:\n  " + "\n  ".join(lines) + "\n"
            "Hint: repeat its settings to resume it, or choose another --out for a new run."
        )


def _recorded_score(out: str | None) -> dict[str, Any] | None:
    from unisono.errors import ConfigError
    from unisono.observe.run_json import LOST, object_in
    from unisono.system.files import read_file

    if out is None:
        return None
    directory, file = Path(out), Path(out) / "score.json"
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"expected a directory, got the file {out} from --out.")
    score = object_in(file, lambda: read_file(file), f" Hint: {LOST}.")
    if score is not None and not {"seed", "replicas", "batch_size", "threads", "settings"} <= score.keys():
        raise ConfigError(f"{file} is not what a run of a recipe writes. Hint: {LOST}.")
    return score


def run_job(job: TrainJob, *, output: str, **settings: Any) -> dict[str, Any]:
    """Start the workers, wait for them, and return the run's ``result.json``; ``options.out`` must be set."""
    from unisono.launchers.api import describe_function
    from unisono.launchers.spec import LaunchSpec
    from unisono.recipes.execute import execute as execute_recipe

    target = describe_function(execute_recipe, (job.options,))
    spec = LaunchSpec(target=target, workers=job.workers, threads=job.options.threads, output=output, **settings)
    start(spec, job.nodes, program=json.dumps(job.options.score, sort_keys=True))
    result: dict[str, Any] = json.loads((Path(job.options.out or ".") / "result.json").read_text())
    return result


def run_in(job: TrainJob, out: Path, **settings: Any) -> dict[str, Any]:
    """Run a job in the run directory `out`, without its output unless `settings` have another; see `run_job`."""
    return run_job(replace(job, options=replace(job.options, out=str(out))), **{"output": "quiet", **settings})


def describe_run_file(options: "Options") -> str:
    """Return the text of ``run.toml``, which gives the same fingerprint again: every option that is set.

    The run directory, and what is of this machine alone, are left out.
    """
    entries = {name: value for name, value in asdict(options).items() if name not in _OF_THE_PLACE}
    for name in ("data", "test_data"):
        if entries[name] is not None:
            entries[name] = str(Path(entries[name]).resolve())
    entries = {name: value for name, value in entries.items() if value is not None and value is not False}
    strategy = options.strategy
    chosen = {name: value for name, value in asdict(strategy).items() if value is not None}
    entries |= {"strategy": strategy.name, **chosen}
    lines = [f"{name} = {_to_toml(value)}\n" for name, value in entries.items()]
    return "# The options of this run; `unisono train --config DIR` runs it again.\n" + "".join(lines)


def _to_toml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_to_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
