"""The options of a run, as ``train``, ``verify`` and ``chaos`` take them: typed, or from a run file.

In: the names of a verb's own options. Out: decorators; `launch_of` reads from what a command was given how its
processes are started. Must not import torch.
"""

import os
from collections.abc import Collection, Mapping
from typing import Any

import click

from unisono.cli.options.fields import field_options, recipe_options, strategy_options
from unisono.cli.options.run_file import take_config
from unisono.cli.options.settings import PATH, Decorator, stack
from unisono.launchers.spec import LaunchSpec
from unisono.nodes.plan import NodesOptions
from unisono.options.fields import options_of, taken
from unisono.recipes.catalog import Options
from unisono.system.machine import resolve_devices

LAUNCH = ("devices", "max_restarts", "live", "spares", "elastic", "witness", "share_devices", "cpu_level", "transport",
          "heartbeat_s", "hang_s", "stop_grace_s")  # fmt: skip
"""Options of a launch, beside the number of workers and what depends on the recipe."""
MAX_RESTARTS = 3


def config_option(*passed_over: str) -> Decorator:
    """Return ``--config``. Keys of a run file in `passed_over` are left to ``train``: where a run goes, say."""
    named = [name for name in passed_over if name not in HOST]
    also = f" {', '.join(named)} and options of several hosts are ignored." if passed_over else ""
    return click.option(
        "--config", type=PATH, metavar="FILE|RUN", is_eager=True, expose_value=False,
        callback=lambda context, _, value: take_config(context, value, passed_over),
        help=f"TOML file with these options (and recipe), or a run directory to repeat; what is typed here wins.{also}",
    )  # fmt: skip


def run_options(*, without: Collection[str] = (), scripts_too: bool = False, live: str = "") -> Decorator:
    """Return the options of a run: strategy, how processes are started, and what the recipes take.

    Args:
        without: Fields that the command has in another sense, or not at all.
        scripts_too: The command takes scripts too, so the help says which options are for recipes.
        live: What ``--live`` is where nobody says it, in words; empty: what the launcher says.
    """
    launch = [name for name in LAUNCH if name not in without]
    scripts = [name for name in _OF_SCRIPTS if name not in without]
    recipes = [name for name in options_of(Options) if name not in (*without, *(_OF_SCRIPTS if scripts_too else ()))]
    changes: dict[str, dict[str, Any]] = {"max_restarts": {"default": MAX_RESTARTS}, "live": {"usual": live}}
    return stack(
        strategy_options,
        field_options(LaunchSpec, *launch, changes=changes),
        *([recipe_options(*scripts)] if scripts_too else []),
        recipe_options(*recipes, scripts_too=scripts_too),
    )


_OF_SCRIPTS = ("replicas", "threads")
"""What a script takes, too."""


HOST = tuple(options_of(NodesOptions))
"""Fields about several hosts."""


def typed_launch(given: dict[str, Any]) -> dict[str, Any]:
    """Take out of what a command was given how its processes are started: by key, as it was typed."""
    keys = [options_of(LaunchSpec)[name].key for name in LAUNCH]
    return {key: given.pop(key) for key in keys if key in given}


PLACES = field_options(LaunchSpec, "devices", "share_devices")
"""Options of the benches that train: on which GPUs."""


def places_of(given: dict[str, Any]) -> dict[str, Any]:
    """Take what `PLACES` were given out of what a command was given: `LaunchSpec` by field."""
    devices = resolve_devices(given.pop("gpus"), os.environ)
    return {**taken(LaunchSpec, given, "share_devices"), "devices": devices}


LIVE = "auto; off with --nnodes 2 or more, --max-restarts 0 or --transport gloo"
"""What ``--live`` is for a recipe, in words; `usual_live` does it."""


def usual_live(launch: Mapping[str, Any], hosts: int) -> dict[str, Any]:
    """Return what is added to a recipe's launch (`LaunchSpec` by field) where nobody has said ``--live``.

    Off where it would cost something in steps in which nobody dies, or where a death is to end the launch.
    """
    if "live" in launch or hosts > 1 or not launch["max_restarts"] or launch.get("transport", "auto") != "auto":
        return {}
    return {"live": "auto", "is_live_usual": True}


def launch_of(given: dict[str, Any]) -> dict[str, Any]:
    """Take out of what a command was given how its processes are started: `LaunchSpec` by field."""
    others = [name for name in LAUNCH if name not in ("devices", "share_devices")]
    return {**places_of(given), **taken(LaunchSpec, given, *others)}
