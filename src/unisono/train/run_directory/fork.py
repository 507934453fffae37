"""A run that shares its first steps with another (``fork.json``), and what it changes where it leaves it."""

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from unisono.errors import ConfigError

FILE_NAME = "fork.json"
Groups = list[dict[str, Any]]


def score_of(fork: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the score of a fork has beside its program's: where it leaves its parent; nothing for other runs."""
    return {} if fork is None else {"fork": {"step": fork["step"], "ledger_head": fork["ledger_head"]}}


def settings_of(optimizer: Optimizer) -> Groups:
    """Return the settings of an optimizer's groups, as they stand."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def change_settings(
    optimizer: Optimizer, scheduler: Any, begun: Groups, own: Mapping[str, Any], parent: Mapping[str, Any] | None
) -> None:
    """Give optimizer and scheduler, which hold the parent's state, the settings in which the fork's program differs.

    A learning rate is multiplied by new / old, since a schedule has moved it meanwhile; all else is set.

    Args:
        optimizer: With the parent's state loaded.
        scheduler: With the parent's state loaded; or None.
        begun: The groups' settings as the fork's program has made them.
        own: What the fork's program says of both, as `describe_optimizer` does.
        parent: What the parent's score says of both; None: it has no such optimizer.

    Raises:
        ConfigError: They are of other classes, or have other groups: the state does not fit.
    """
    if parent is None:
        raise ConfigError("a fork goes on with its parent's state: expected optimizers of the same names.")
    for what, ours, theirs in (
        ("optimizer", own["class"], parent["class"]),
        ("scheduler", own["scheduler"], parent["scheduler"]),
        ("number of groups", len(own["groups"]), len(parent["groups"])),
    ):
        if ours != theirs:
            raise ConfigError(f"a fork goes on with its parent's state: expected the {what} {theirs}, got {ours}.")
    for group, ours, described, before in zip(
        optimizer.param_groups, begun, own["groups"], parent["groups"], strict=True
    ):
        for name, value in ours.items():
            if described.get(name) == before.get(name):
                continue
            is_moved = name == "lr" and before.get("lr")
            group[name] = group["lr"] * (described["lr"] / before["lr"]) if is_moved else value
    if scheduler is not None:
        ours, theirs = own["scheduler_state"], parent["scheduler_state"]
        changed = {name: value for name, value in ours.items() if value != theirs.get(name)}
        scheduler.load_state_dict({**scheduler.state_dict(), **changed})
        if "_last_lr" in changed:
            scheduler._last_lr = [group["lr"] for group in optimizer.param_groups]
