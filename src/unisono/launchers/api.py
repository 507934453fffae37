"""`launch`: start a function on several processes, from a script or a notebook.

In: a function and picklable arguments. Out: what rank 0 returned, or the root cause as an exception. New processes
import the function by its name; what has none there (a notebook's cell, a lambda, a nested function) is sent as it is,
by the library cloudpickle where that is installed. Inside a world that some launcher has started already, the function
is simply called. Must not import torch.
"""

import inspect
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

from unisono.errors import LaunchError
from unisono.launchers.local import run_local
from unisono.launchers.scratch import scratch_directory
from unisono.launchers.spec import SAME_COMMAND, FunctionTarget, LaunchSpec, resolve_workers
from unisono.launchers.worker.child import LOADING_MARK
from unisono.launchers.worker.returned import take
from unisono.options.keywords import meant
from unisono.system.messages import with_own_lines
from unisono.world import World

T = TypeVar("T")

_MOST_SHOWN = 60  # characters of what was given in place of a function
_OR = "; or pip install cloudpickle, which sends it as it is"


@with_own_lines
def launch(
    fn: Callable[..., T],
    /,
    *args: object,
    workers: int | str = "auto",
    threads: int | None = None,
    replicas: int | None = None,
    max_restarts: int = 0,
    live: str = "off",
    spares: int = 0,
    elastic: str | None = None,
    **kwargs: object,
) -> T:
    """Run ``fn(*args, **kwargs)`` on every worker, wait for all of them, and return what `fn` returned on rank 0.

    In a process that was started by ``unisono run``, torchrun, srun or mpirun, `fn` is called right here: the
    world exists already. Otherwise new processes are started, also for one worker, so that one and many run
    under the same conditions. Blocks. From a thread other than the main one, the workers die with that
    thread.

    Args:
        fn: A function at the top level of a module or of the starting script. With cloudpickle (``pip install
            cloudpickle``) also one of a notebook or an interactive session, a lambda, a nested function: the workers
            get it with copies of the values that it uses.
        *args: Passed to `fn`; pickled.
        workers: Number of processes, or ``auto``: one per GPU, else one per core, at most `replicas`.
        threads: Threads per worker. None: the user's ``OMP_NUM_THREADS``, or 1.
        replicas: Replicas of the run for programs that leave them unset themselves.
        live: ``auto``: when a worker is killed, the others finish the same step without it, where they can.
        spares: So many more workers are started, and wait to take the place of one that has died.
        elastic: ``MIN:MAX``: how few and how many workers there may be, with ``live="auto"``.
        max_restarts: Start the workers again after one has died; so many restarts in a row may pass without progress.
            `fn` runs from its beginning: `unisono.Run` with ``out=...`` resumes.
        **kwargs: Passed to `fn`; pickled.

    Returns:
        What `fn` returned on rank 0: pickled, so with its tensors a copy; None, and a line that says so, where that
        cannot be pickled. Where `fn` is called right here, its result.

    Raises:
        LaunchError: The workers could not import `fn` or load its arguments, or it lacks one of the keywords; nothing
            has been started.
        ConfigError: `workers`, `threads` or `replicas` are out of range.
        WorkerFailed: A worker failed; the message holds its traceback.
        RunStopped: SIGINT or SIGTERM came, and the run has stopped between two steps and saved.

    Example:
        >>> accuracy = unisono.launch(main, workers=2)  # doctest: +SKIP
    """
    if getattr(sys.modules.get("__mp_main__"), LOADING_MARK, False):
        raise LaunchError(
            "launch() was called while a worker loads the starting script, which would run it twice. "
            'Hint: put the call under: if __name__ == "__main__":'
        )
    _check_arguments(fn, args, kwargs)
    imposed = {} if replicas is None or "UNISONO_REPLICAS" in os.environ else {"UNISONO_REPLICAS": str(replicas)}
    if World.current().launcher != "none":
        os.environ.update(imposed)
        return fn(*args, **kwargs)
    target = describe_function(fn, args, kwargs)
    how: dict[str, Any] = {"max_restarts": max_restarts, "live": live, "spares": spares, "elastic": elastic}
    how |= {"workers": resolve_workers(workers, replicas), "threads": threads, "env": imposed, "again": SAME_COMMAND}
    output = "leader" if sys.stderr is not None and sys.stderr.isatty() else "prefix"
    with scratch_directory("results") as folder:
        run_local(LaunchSpec(target=replace(target, results=folder), output=output, **how))
        returned: T = take(folder, getattr(fn, "__name__", "the function"))
        return returned


def _check_arguments(fn: Callable[..., object], args: tuple[object, ...], given: Mapping[str, object]) -> None:
    """Refuse keywords that neither `launch` nor the function has, and too few values, before anything is started."""
    if not isinstance(fn, FunctionType):
        return
    signature = inspect.signature(fn, follow_wrapped=False)
    known = signature.parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    ours = [each for each in launch.__annotations__ if each not in ("fn", "args", "kwargs", "return")]
    for name in given:
        if name not in known and not takes_any:
            told = (
                ". Hint: launch(function, argument, key=value)."
                if name in ("args", "kwargs")
                else meant(name, [*known, *ours])
            )
            raise LaunchError(f"neither launch() nor {fn.__name__}() has {name}={told}")
    try:
        signature.bind(*args, **given)
    except TypeError as error:
        shown = ", ".join([fn.__name__, *known])
        raise LaunchError(f"{fn.__name__}(): {error}. Hint: unisono.launch({shown}, workers=...).") from None


def describe_function(
    fn: Callable[..., object], args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
) -> FunctionTarget:
    """Return the target by which other processes find `fn` and its arguments.

    Raises:
        LaunchError: They could not: without cloudpickle a lambda, a nested function, a notebook's function; a method;
            an argument that cannot be pickled.
    """
    given = dict(kwargs or {})
    sys_path = tuple(entry or str(Path.cwd()) for entry in sys.path)
    main_file, main_module = "", ""
    try:
        module, name = _importable_name(fn)
        if module == "__main__":
            main_file, main_module = _main_program(fn)
        payload = _pickled(args, given)
        if b"__main__" in payload:
            main_file, main_module = _main_program(fn)
    except _NotImportable as error:
        if find_spec("cloudpickle") is None:
            raise LaunchError(str(error)) from None
        return FunctionTarget(module="", name="", sys_path=sys_path, payload=_by_value(fn, args, given))
    return FunctionTarget(
        module=module, name=name, main_file=main_file, main_module=main_module, sys_path=sys_path, payload=payload
    )


class _NotImportable(LaunchError):
    """What is refused only because new processes cannot import it: cloudpickle can send it."""


def _by_value(fn: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
    import cloudpickle

    try:
        sent: bytes = cloudpickle.dumps((fn, args, kwargs))
    except Exception as error:
        raise LaunchError(
            f"expected a function that new processes can be given, but something that {fn.__name__} or its arguments "
            f"use cannot be pickled: {error}. Hint: open files, make locks, build objects inside the function."
        ) from error
    return sent


def _importable_name(fn: Callable[..., object]) -> tuple[str, str]:
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or isinstance(fn, type):
        shown = repr(fn)
        if shown.endswith(".py'") and isinstance(fn, str):
            raise LaunchError(f"expected a function, got the text {shown}. Hint: for a script: unisono run -n 2 {fn}.")
        what = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."
        raise LaunchError(
            f"expected a function, got {' '.join(what.split())} of type {type(fn).__name__}. "
            "Hint: give the function and its arguments, launch(train, arg, key=value), not what train(...) returned."
        )
    if name != getattr(fn, "__name__", name) or "." in name or name == "<lambda>":
        kind = _kind(fn, name)
        raise (LaunchError if kind == "the method" else _NotImportable)(
            f"expected a function at the top level of a module, got {kind} {module}.{name}: "
            "new processes cannot import it. "
            f"Hint: define it with `def` at the left margin of a .py file; pass what it needs as arguments{_OR}."
        )
    found = getattr(sys.modules.get(module), name, None)
    if found is not fn:
        raise LaunchError(
            f"expected {module}.{name} to be the function that was passed, got {found!r}: "
            "new processes would import that. "
            "Hint: pass the object that the module's name refers to, for example after decoration."
        )
    return module, name


def _kind(fn: Callable[..., object], name: str) -> str:
    if name.endswith("<lambda>"):
        return "the lambda"
    if "<locals>" in name:
        return "the nested function"
    return "the method" if not isinstance(fn, FunctionType) or "." in name else "the function"


def _main_program(fn: Callable[..., object]) -> tuple[str, str]:
    main: Any = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return "", str(spec.name)
    file = getattr(main, "__file__", None)
    if not file or not Path(file).is_file():
        name = getattr(fn, "__name__", "main")
        raise _NotImportable(
            f"expected a function from a .py file, got {name!r}, defined (or given values defined) "
            "in a notebook or interactive session: new processes cannot import that. "
            "Hint: put it into a file next to the notebook, train.py for example, and write: "
            f"from train import {name}; unisono.launch({name}, ...){_OR}."
        )
    return os.path.abspath(file), ""  # noqa: PTH100 - resolve() would follow links


def _pickled(args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
    try:
        return pickle.dumps((args, kwargs))
    except Exception as error:
        named = [*((f"argument {i}", value) for i, value in enumerate(args, 1)), *kwargs.items()]
        name, value = next((pair for pair in named if not _can_pickle(pair[1])), ("an argument", args))
        raise LaunchError(
            f"expected arguments that can be pickled, got {name} of type {type(value).__name__}: {error}. "
            "Hint: pass plain values (paths, numbers, settings); open files, build objects in the function."
        ) from error


def _can_pickle(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - see `_pickled`
        return False
    return True
