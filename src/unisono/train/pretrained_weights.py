"""Weights from a file that the leader reads, on all ranks: read once, sent, checked everywhere, then written."""

from pathlib import Path

from torch import nn

from unisono.checkpoint.format import State, fingerprint
from unisono.checkpoint.interchange import Loaded, fit_weights, load_weights, tensors_in, write_weights
from unisono.collectives.leader import ranks_say
from unisono.collectives.transport import Transport
from unisono.errors import RankDivergence
from unisono.strategies.options import StrategyOptions
from unisono.train.guards.checks import check_loadable
from unisono.train.run_directory.handover import hand_over
from unisono.train.score import describe_model
from unisono.train.trained_parts import Parts


def load_on_all(
    transport: Transport, model: nn.Module, path: Path, *, strict: bool, average: str | None = None
) -> Loaded:
    """Put the weights of a file that rank 0 can read into every rank's model, or into none; collective.

    Raises:
        CheckpointError: The file cannot be read or does not fit; on rank 0.
        LeaderFailed: The same, on the others, with the words of the rank that failed.
        RankDivergence: The ranks hold different weights afterwards: some that the file does not have.
    """
    if transport.world_size == 1:
        return load_weights(model, path, strict=strict, average=average)

    def read() -> tuple[int, State]:
        fitting, loaded = fit_weights(model, tensors_in(path, average), strict=strict, source=str(path))
        told = {"missing": [*loaded.missing], "unexpected": [*loaded.unexpected], "prefix": loaded.prefix}
        return 0, State(tensors={"model": fitting}, values=told)

    _, came = hand_over(transport, 0, read)
    ranks_say(transport, True, lambda: [*fit_weights(model, came.tensors["model"], strict=False, source=str(path))[0]])
    write_weights(model, came.tensors["model"])
    hashes = transport.all_gather_json(fingerprint(model))
    for rank, theirs in enumerate(hashes):
        if theirs != hashes[0]:
            raise RankDivergence(
                f"rank 0 and rank {rank} hold different weights after {path} was loaded on all. "
                "Hint: build the model after Run(seed=...), on all ranks alike, before it is filled."
            )
    values = came.values
    return Loaded(missing=tuple(values["missing"]), unexpected=tuple(values["unexpected"]), prefix=values["prefix"])


def load_prepared(
    parts: Parts, options: StrategyOptions, path: Path, *, strict: bool, average: str | None, is_open: bool
) -> Loaded:
    """Do the same with a prepared model (see `check_loadable`), and describe it anew for the score; collective."""
    check_loadable(parts.strategy, options, parts.registered, is_open=is_open)
    loaded = load_on_all(parts.strategy.transport, parts.model, path, strict=strict, average=average)
    parts.description["model"]["initial_weights"] = describe_model(parts.model)["initial_weights"]
    return loaded
