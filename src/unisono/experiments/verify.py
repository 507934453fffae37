"""The same score on several numbers of workers: are the bits equal, and where do they part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.experiments.job import take_strategy
from unisono.experiments.trials import Finished, Tell, run_fresh, silent, starter
from unisono.launchers.scratch import scratch_directory
from unisono.observe.compare import first_difference
from unisono.system.words import counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """Whether the number of workers has changed a bit."""

    equal: bool  #: All fingerprints and ledgers are equal.
    #: For each run, in the given order: ``workers``, ``seconds`` of wall time, ``steps``, ``fingerprint``.
    trials: list[dict[str, Any]]
    #: For each run whose ledger is not that of the first: its workers, the step, and the fields that differ.
    parted: list[tuple[int, int, list[str]]]


def verify(
    target: str, args: Sequence[str] = (), *, workers: Sequence[int] | None = None,
    launch: Mapping[str, Any] | None = None, tell: Tell = silent, **options: Any,
) -> Verified:  # fmt: skip
    """Run a recipe or a script once for each number of workers and compare fingerprints and ledgers.

    Args:
        target: The recipe, or the script's path.
        args: The script's own.
        workers: How many, for each run. None: 1 and 2; with a strategy whose bits depend on the number, twice the same.
        launch: More of the `LaunchSpec`, such as ``{"witness": 1.0}``.
        tell: Takes a line about what is going on.
        **options: Options of the recipe, its strategy with them, by key; of a script ``replicas`` and ``threads``.

    Raises:
        ConfigError: A wrong setting, a run without a result, or runs that do not compute the same.
        WorkerFailed: A worker failed.
    """
    workers = _counts(workers, options)
    if len(workers) < 2:
        raise ConfigError(f"expected at least two runs to compare, got {list(workers)}. Hint: --workers 1,2.")
    with scratch_directory("verify") as scratch:
        start = starter(target, args, workers, options, **{**(launch or {}), "scratch": scratch})
        found: list[Finished] = []
        for place, count in enumerate(workers):
            tell(f"[{place + 1}/{len(workers)}] {target} on {counted(count, 'worker')} ...")
            found.append(run_fresh(start, count, Path(scratch) / f"{place}-{count}"))
            _check_score(found[-1].score, options)
        parted = []
        for count, run in zip(workers, found, strict=True):
            if (difference := first_difference(found[0].out / "ledger.jsonl", run.out / "ledger.jsonl")) is not None:
                parted.append((count, *difference))
    trials = [
        {"workers": count, "seconds": run.seconds, **{name: run.result[name] for name in ("steps", "fingerprint")}}
        for count, run in zip(workers, found, strict=True)
    ]
    if options.get("replicas") is None and not _names_replicas(target):
        tell(
            f"compared with {counted(found[0].score['replicas'], 'replica')}. The script names none: started by hand "
            "it has one for each worker, and other bits on each number. Hint: Run(replicas=...) in the script."
        )
    equal = not parted and len({trial["fingerprint"] for trial in trials}) == 1
    return Verified(equal=equal, trials=trials, parted=parted)


def _names_replicas(target: str) -> bool:
    """Whether a script speaks of replicas; recipes have a number of their own."""
    path = Path(target)
    return not (path.suffix == ".py" and path.is_file()) or "replicas" in path.read_text(errors="replace")


def _counts(asked: Sequence[int] | None, options: Mapping[str, Any]) -> Sequence[int]:
    """Return how many workers each run has; `ConfigError` where the strategy would compute something else on each."""
    strategy = take_strategy(dict(options))
    if asked is None:
        usual = strategy.usual_workers(2)
        return (1, 2) if strategy.is_exact else (usual, usual)
    if not strategy.is_exact and options.get("replicas") is None and len(set(asked)) > 1:
        most = max(asked)
        raise ConfigError(
            f"with --strategy {strategy.name} the number of workers decides how many replicas there are, so runs on "
            f"{', '.join(map(str, asked))} workers compute different things. Hint: --workers {most},{most} proves that "
            f"a run repeats; --replicas {most} compares them nevertheless."
        )
    return asked


def _check_score(score: dict[str, Any], options: dict[str, Any]) -> None:
    for name in ("replicas", "threads"):
        given, processes = options.get(name), score.get("settings", {}).get("num_processes")
        if given not in (None, score[name]) and (name, given) != ("replicas", processes):
            raise ConfigError(
                f"--{name} {given} was given, but the script sets {name}={score[name]} itself. "
                f"Hint: leave --{name} out, or {name} unset in unisono.Run()."
            )
