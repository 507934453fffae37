"""Which GPU each rank computes on (pure).

Two halves. Before the start, the launcher chooses among the visible GPUs and says what each rank may see. In a rank,
the index of its own GPU among those it sees follows from its local rank. Without sharing all ranks of a host see the
same list, so that ``cuda:LOCAL_RANK``, as torchrun's scripts write it, is a rank's own; ranks that share see one each.
"""

from collections.abc import Sequence
from typing import NamedTuple

from unisono.errors import ConfigError

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
SHARE_VARIABLE = "UNISONO_SHARE_DEVICES"
CPU = "cpu"
_NAMED = ("GPU-", "MIG-")


class Gpu(NamedTuple):
    """A GPU of the machine."""

    name: str  #: That no other has: ``GPU-...``; empty where it is not told.
    parts: tuple[str, ...] = ()  #: The names of its parts (MIG), if it is cut into some.


def visible_devices(variable: str | None, count: int) -> tuple[str, ...]:
    """Return the names of the GPUs that a process may use, in the order of ``cuda:0``, ``cuda:1``, ...

    Args:
        variable: Value of ``CUDA_VISIBLE_DEVICES``; None where it is unset.
        count: GPUs of the machine.
    """
    if variable is None:
        return tuple(map(str, range(count)))
    names = []
    for name in (part.strip() for part in variable.split(",")):
        # CUDA, too, takes no GPU from the first name on that it does not know.
        if not name or (name.lstrip("-").isdecimal() and not (len(name) < 10 and 0 <= int(name) < count)):
            break
        names.append(name)
    return tuple(names)


def choose_devices(asked: str, visible: Sequence[str], known: Sequence[Gpu] = ()) -> tuple[str, ...]:
    """Return the GPUs that ``--gpus`` asks for; none for ``cpu``.

    Args:
        asked: ``cpu``, or GPUs joined by commas: indices among the visible ones (as in ``cuda:0``), or names such as
            ``GPU-3f1a``, of which a beginning that fits one is enough.
        visible: From `visible_devices`.
        known: The machine's GPUs, whose names and those of their parts may be asked for where indices are visible.

    Raises:
        ConfigError: One is not there, or asked for twice.

    Example:
        >>> choose_devices("0,2", ["4", "5", "6", "7"])
        ('4', '6')
    """
    if asked == CPU:
        return ()
    chosen: list[str] = []
    named = {name: name for name in visible if not name.isdecimal()}
    for index in (int(name) for name in visible if name.isdecimal() and int(name) < len(known)):
        named |= {known[index].name: str(index), **{unit: unit for unit in known[index].parts}}
    for part in (part.strip() for part in asked.split(",")):
        if part.isdecimal():
            fits = [visible[int(part)]] if len(part) < 10 and int(part) < len(visible) else []
        else:
            fits = [told for name, told in named.items() if part.startswith(_NAMED) and name.startswith(part)]
        if len(fits) != 1 or fits[0] in chosen:
            why = "asked for twice" if len(fits) == 1 else "is not there" if not fits else "fits several"
            raise ConfigError(
                f"expected --gpus with GPUs out of {len(visible)} visible ones, got {asked!r}: {part!r} {why}. "
                f"Hint: {_range_of(visible)}."
            )
        chosen += fits
    return tuple(chosen)


def _range_of(visible: Sequence[str]) -> str:
    if not visible:
        return "--gpus cpu; no GPU is visible here (nvidia-smi -L, CUDA_VISIBLE_DEVICES)"
    return f"indices from 0 to {len(visible) - 1}, or names from nvidia-smi -L"


def check_devices(workers: int, devices: Sequence[str], *, share: bool) -> None:
    """Refuse more ranks than GPUs, unless they are to share."""
    if devices and workers > len(devices) and not share:
        raise ConfigError(_too_many(workers, len(devices)))


def device_variables(rank: int, devices: Sequence[str], *, share: bool) -> dict[str, str]:
    """Return what a rank of a single host must be told of its devices.

    Args:
        rank: Its local rank.
        devices: From `choose_devices`; empty hides all GPUs.
        share: Whether ranks may share a GPU: they take the devices in turn, each seeing its own only.

    Example:
        >>> device_variables(1, ["4", "6"], share=False)
        {'CUDA_VISIBLE_DEVICES': '4,6'}
        >>> device_variables(2, ["4", "6"], share=True)
        {'CUDA_VISIBLE_DEVICES': '4', 'UNISONO_SHARE_DEVICES': '1'}
    """
    if share and devices:
        return {VISIBLE_VARIABLE: devices[rank % len(devices)], SHARE_VARIABLE: "1"}
    if any(name.startswith("MIG-") for name in devices):  # CUDA shows a process one of them at most
        return {VISIBLE_VARIABLE: devices[rank % len(devices)]}
    return {VISIBLE_VARIABLE: ",".join(devices)}


def own_index(local_rank: int, local_world_size: int, num_visible: int, *, share: bool) -> int | None:
    """Return the index of a rank's GPU among those it sees; None for the CPU, where it sees none.

    A single visible GPU is taken for the rank's own: Slurm (``--gpus-per-task``), Ray and ranks that share are shown no
    other. Whether two ranks were shown the same one is found when they meet, see `find_shared`.

    Raises:
        ConfigError: There are several GPUs, but fewer than ranks.
    """
    if num_visible == 0:
        return None
    if num_visible >= local_world_size:
        return local_rank
    if num_visible == 1 or share:
        return local_rank % num_visible
    raise ConfigError(_too_many(local_world_size, num_visible))


def find_shared(devices: Sequence[str]) -> str | None:
    """Return in words which ranks have the same device, None where each has its own. `devices`, by rank: host and GPU,
    as a name that no other GPU has.

    Example:
        >>> find_shared(["a/1", "a/2"]), find_shared(["a/1", "a/2", "a/1"])
        (None, 'ranks 0 and 2 have the same GPU (a/1)')
    """
    seen: dict[str, int] = {}
    for rank, device in enumerate(devices):
        if device in seen:
            return f"ranks {seen[device]} and {rank} have the same GPU ({device})"
        seen[device] = rank
    return None


def _too_many(workers: int, count: int) -> str:
    return (
        f"expected a GPU for each worker, got {workers} workers and {count} GPU{'s' if count > 1 else ''}. "
        f"Hint: {count} worker{'s' if count > 1 else ''}; or --share-devices ({SHARE_VARIABLE}=1) to let them share; "
        f"or --gpus cpu ({VISIBLE_VARIABLE}=) to compute on the CPU."
    )
