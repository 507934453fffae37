"""torchrun's own words for ``unisono run``, so that its command lines can be pasted; hidden in ``--help``.

In: what was given, on the command line or as ``PET_<NAME>`` (variables that torchrun reads, and operators of clusters
set). Out: our own settings. What cannot be given its meaning is refused by its name, with what to use. No torch.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import click
from click.core import ParameterSource

from unisono.errors import ConfigError
from unisono.nodes.plan import NodesOptions, parse_nodes
from unisono.options.fields import option, options_of
from unisono.options.quantities import SECONDS


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TorchrunWords:
    """What torchrun's own options say; see its documentation."""

    nproc_per_node: str | None = option(None, hidden=True)
    standalone: bool = option(False, hidden=True)
    rdzv_backend: str | None = option(None, hidden=True)
    rdzv_conf: str | None = option(None, hidden=True)
    role: str = option("default", hidden=True)
    log_dir: str | None = option(None, is_path=True, hidden=True)
    redirects: str = option("0", short="-r", hidden=True)
    tee: str = option("0", short="-t", hidden=True)
    local_ranks_filter: str = option("", hidden=True)
    shutdown_timeout: float | None = option(None, of=SECONDS, hidden=True)
    no_python: bool = option(False, hidden=True)


_LIKE_OURS = ("nnodes", "node_rank", "rdzv_endpoint", "rdzv_id", "master_addr", "master_port", "max_restarts")
"""Parameters that both have; with torchrun's own, those that are read from the environment too."""

WITHOUT_EFFECT = {
    "--monitor-interval": "the kernel tells the launcher at once when a process ends",
    "--start-method": "a script is a new process, under torchrun too",
    "--run-path": "a script runs in the process that was started for it, always",
    "--use-env": "the local rank is in LOCAL_RANK, and an option only where the script declares it",
}
"""Accepted, because what they ask for is so already, or changes nothing."""

REFUSED = {
    "--local-addr": "Hint: --interface NAME chooses by the interface instead of its address.",
    "--event-log-handler": "Hint: leave it out; the launcher says what happens on its error output.",
    "--logs-specs": "Hint: --log-dir, --redirects and --tee say what is kept.",
    "--duplicate-stdout-filters": "Hint: --tee 1 --log-dir DIR keeps all lines; grep finds some of them.",
    "--duplicate-stderr-filters": "Hint: --tee 2 --log-dir DIR keeps all lines; grep finds some of them.",
    "--numa-binding": "Hint: --no-python numactl OPTIONS python SCRIPT binds all processes alike.",
    "--signals-to-handle": "Hint: leave it out; SIGINT, SIGTERM, SIGHUP and SIGUSR1 stop a launch.",
    "--virtual-local-rank": "Hint: leave it out; each process finds its GPU as cuda:LOCAL_RANK.",
}
"""What has no counterpart here, and what to do instead."""
_FLAGS = ("--run-path", "--use-env", "--virtual-local-rank")
_JOIN_KEYS = ("join_timeout", "timeout")


class Understood(NamedTuple):
    """What torchrun's words mean here: the workers as ``-n`` takes them, the hosts, more of the `LaunchSpec`."""

    workers: str
    nodes: NodesOptions
    settings: dict[str, Any]


def inert_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that are accepted without effect, or refused by name."""

    def refuse(_: click.Context, parameter: click.Parameter, value: object) -> None:
        flag = parameter.opts[0]
        if value and flag in REFUSED:
            raise click.UsageError(f"{flag} is torchrun's, and not understood here. {REFUSED[flag]}")

    for flag in (*WITHOUT_EFFECT, *REFUSED):
        click.option(flag, is_flag=flag in _FLAGS, hidden=True, expose_value=False, callback=refuse)(command)
    return command


def read_environment_too(command: click.Command) -> None:
    """Let the parameters that torchrun knows be given by its variables, such as ``PET_NNODES``."""
    for parameter in command.params:
        if parameter.name in (*options_of(TorchrunWords), *_LIKE_OURS):
            parameter.envvar = f"PET_{parameter.name.upper()}"


def understand(words: TorchrunWords, workers: str, hosts: dict[str, Any], *, is_module: bool) -> Understood:
    """Return what was given, in our words."""
    from unisono.launchers.streams import Streams, make_log_directory, parse_ranks, parse_streams

    if words.no_python and is_module:
        raise ConfigError("--no-python starts a program, -m a Python module: expected one of them, got both.")
    nodes = NodesOptions(**_hosts(words, hosts))
    redirected, copied = parse_streams("--redirects", words.redirects), parse_streams("--tee", words.tee)
    shown = parse_ranks("--local-ranks-filter", words.local_ranks_filter)
    place = words.log_dir
    if redirected and place is None:
        raise ConfigError("--redirects sends the output to files, but not where. Hint: --log-dir DIR.")
    if place is not None and (redirected or copied):
        place = make_log_directory(place, nodes.rdzv_id)
        click.echo(f"unisono: the workers' output is kept in {place}", err=True)
    settings: dict[str, Any] = {
        "streams": Streams(directory=place, redirected=redirected, copied=copied, shown=shown),
        "role": words.role,
        "run_id": "" if nodes.rdzv_id == "none" else nodes.rdzv_id,
    }
    if words.shutdown_timeout is not None:
        settings |= {"grace_s": words.shutdown_timeout, "stop_grace_s": words.shutdown_timeout}
    return Understood(_workers(words.nproc_per_node, workers), nodes, settings)


def _workers(asked: str | None, workers: str) -> str:
    from unisono.system.machine import count_gpus, usable_cores

    context = click.get_current_context()
    if asked is None:
        return workers
    if context.get_parameter_source("workers") == ParameterSource.COMMANDLINE:
        if context.get_parameter_source("nproc_per_node") != ParameterSource.COMMANDLINE:
            return workers  # what is typed wins over PET_NPROC_PER_NODE
        raise ConfigError("-n and --nproc-per-node say the same. Hint: give one of them.")
    if asked == "cpu":
        return str(usable_cores())
    if asked == "gpu":
        gpus = count_gpus(os.environ)
        if not gpus:
            raise ConfigError(
                "--nproc-per-node gpu: no GPU is visible here (nvidia-smi -L, CUDA_VISIBLE_DEVICES). "
                "Hint: --nproc-per-node auto takes the cores then; or give a number."
            )
        return str(gpus)
    if asked != "auto" and not asked.isdecimal():
        raise ConfigError(f"expected --nproc-per-node N, auto, cpu or gpu, got {asked!r}.")
    return asked


def _hosts(words: TorchrunWords, given: dict[str, Any]) -> dict[str, Any]:
    backend, endpoint, nnodes = words.rdzv_backend, given.get("rdzv_endpoint"), given.get("nnodes")
    if backend not in (None, "c10d", "static"):
        raise ConfigError(
            f"--rdzv-backend {backend}: the hosts meet at one of them, without a server beside them. "
            "Hint: leave it out (c10d and static are understood), and give --rdzv-endpoint HOST[:PORT]."
        )
    if (seconds := _join_timeout(words.rdzv_conf)) is not None:
        if "rdzv_timeout" in given:
            raise ConfigError("--rdzv-timeout and --rdzv-conf join_timeout say the same. Hint: give one of them.")
        given = {**given, "rdzv_timeout": seconds}
    if words.standalone:
        if parse_nodes(nnodes or "1")[1] != 1:
            raise ConfigError(f"--standalone is for one host, got --nnodes {nnodes}. Hint: leave it out.")
        return {**given, "nnodes": "1", "rdzv_endpoint": None}
    if endpoint and nnodes is None and _is_here(endpoint):
        return {**given, "nnodes": "1"}  # nobody else could come there
    return given


def _join_timeout(text: str | None) -> float | None:
    """Return the seconds that ``--rdzv-conf KEY=VALUE,...`` gives for the wait for other hosts, None for none."""
    seconds = None
    for part in filter(None, (text or "").split(",")):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in _JOIN_KEYS:
            raise ConfigError(
                f"--rdzv-conf {part}: expected {' or '.join(_JOIN_KEYS)}, the wait for the other hosts; the rendezvous "
                f"of unisono has no {key!r}. Hint: leave it out."
            )
        try:
            seconds = float(value)
        except ValueError:
            raise ConfigError(f"expected --rdzv-conf {key}=SECONDS, got {part!r}.") from None
    return seconds


def _is_here(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":") if endpoint.count(":") == 1 else (endpoint, "", "")
    return port == "0" or host == "localhost" or host.startswith("127.") or endpoint.startswith(("[::1]", "::1"))
