"""The variables that a worker starts with: its place in the world, where it meets the others, threads and devices.

In: a `LaunchSpec`. Out: pure functions of it and of the launcher's own environment. Must not import torch.
"""

from collections.abc import Mapping
from pathlib import Path

from unisono.environment import CPU_LEVELS
from unisono.launchers.spec import BACKEND_VARIABLE, LaunchSpec, NodePlacement
from unisono.launchers.worker.error_file import ERROR_VARIABLE, error_file
from unisono.store.secret import FILE_VARIABLE, VARIABLE
from unisono.system.devices import SHARE_VARIABLE, device_variables
from unisono.system.heartbeat import HEARTBEAT_VARIABLE

# From 2 MiB on, the C library copies around the caches, which it would only empty: a checkpoint takes two thirds of
# the time. glibc's own threshold grows with a cache that virtual machines report for more than they have.
COPY_AROUND_CACHES = "glibc.cpu.x86_non_temporal_threshold=0x200000"
JOINS_VARIABLE = "UNISONO_JOINS"
"""Number of a worker that joins the others later."""
_LOOPBACK = "127.0.0.1"


def worker_environment(
    spec: LaunchSpec, rank: int, rendezvous_dir: str, port: int, base_env: Mapping[str, str]
) -> dict[str, str]:
    """Return all variables of one worker.

    They are torchrun's, so that its scripts run unchanged, plus unisono's own: where the workers meet (on one host
    a file), the secret that they share with those of other hosts, and the heartbeat page.

    Args:
        spec: The launch.
        rank: Rank of the worker; one after the last: its number, and it joins the others when they let it in.
        rendezvous_dir: Private directory of this launch.
        port: Reserved port for scripts that meet through ``MASTER_ADDR`` and ``MASTER_PORT``.
        base_env: The launcher's own environment; never written to.
    """
    # A launcher that itself runs under torchrun must not hand on the outer agent's store; nor one that itself is a
    # worker the choice made for that.
    theirs = {BACKEND_VARIABLE, *((VARIABLE, FILE_VARIABLE) if spec.placement else ())}
    outer = {k: v for k, v in base_env.items() if not k.startswith("TORCHELASTIC_") and k not in theirs}
    outer.pop(JOINS_VARIABLE, None)
    number, rank = rank, min(rank, spec.ranks.stop - 1)
    local_rank, workers = rank - spec.ranks.start, str(spec.workers)
    devices = {SHARE_VARIABLE: "1"} if spec.share_devices else {}
    if spec.devices is not None:
        devices = device_variables(local_rank, spec.devices, share=spec.share_devices)
    return {
        "GLIBC_TUNABLES": COPY_AROUND_CACHES,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",  # as torchrun does
        "PYTHONHASHSEED": "0",  # a vocabulary made from a set of words is to be the same on all ranks
        **outer,
        **spec.env,
        **CPU_LEVELS.get(spec.cpu_level or "", {}),
        **devices,
        **thread_variables(spec.threads, {**outer, **spec.env}),
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_WORLD_SIZE": workers,
        "ROLE_WORLD_SIZE": str(spec.world_size),
        "ROLE_NAME": spec.role,
        "TORCHELASTIC_RUN_ID": spec.placement.run_id if spec.placement else spec.run_id or "none",
        "TORCHELASTIC_RESTART_COUNT": str(spec.placement.attempt if spec.placement else spec.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        # With a seat the launcher serves the store; else rank 0 of a script that meets by env:// opens it.
        "TORCHELASTIC_USE_AGENT_STORE": str(spec.placement is not None),
        ERROR_VARIABLE: str(error_file(rendezvous_dir, number)),
        HEARTBEAT_VARIABLE: str(Path(rendezvous_dir) / f"heartbeat-{number}"),
        **({} if rank == number else {JOINS_VARIABLE: str(number)}),
        "PYTHONUNBUFFERED": "1",
        **({"UNISONO_WITNESS": repr(float(spec.witness))} if spec.witness and spec.world_size > 1 else {}),
        **_rendezvous_variables(spec.placement, rendezvous_dir, port),
        **({BACKEND_VARIABLE: spec.backend_module} if spec.backend else {}),
        **({"UNISONO_TRANSPORT": spec.transport} if spec.transport != "auto" else {}),
    }


def _rendezvous_variables(placement: NodePlacement | None, rendezvous_dir: str, port: int) -> dict[str, str]:
    if placement is None:
        return {
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "MASTER_ADDR": _LOOPBACK,
            "MASTER_PORT": str(port),
            "UNISONO_RENDEZVOUS": str(Path(rendezvous_dir) / "store"),
            "GLOO_SOCKET_IFNAME": "lo",
        }
    return {
        "GROUP_RANK": str(placement.node_rank),
        "GROUP_WORLD_SIZE": str(placement.num_nodes),
        "MASTER_ADDR": placement.master_addr,
        "MASTER_PORT": str(placement.master_port),
        "UNISONO_RENDEZVOUS": f"unisono://{placement.store}",
        VARIABLE: placement.secret,
        **({"UNISONO_LIVE_STORE": placement.own_store} if placement.own_store else {}),
        "GLOO_SOCKET_IFNAME": placement.interface,
        "NCCL_SOCKET_IFNAME": f"={placement.interface}",  # without the sign NCCL takes it for the beginning of a name
    }


def thread_variables(count: int | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that fix a process's threads; without a count, the user's ``OMP_NUM_THREADS`` or 1."""
    # Set for one worker too: another number of threads gives other bits. DYNAMIC lets the libraries use fewer
    # threads than asked when the machine is busy, and the bits would depend on the load.
    fixed = {"OMP_DYNAMIC": "FALSE", "MKL_DYNAMIC": "FALSE"}
    if count is None:
        return {"OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS") or "1", **fixed}
    threads = {"OMP_NUM_THREADS": str(count)}
    if "MKL_NUM_THREADS" in environ:  # torch gives MKL's own variable precedence over OpenMP's
        threads["MKL_NUM_THREADS"] = str(count)
    return {**threads, **fixed}
