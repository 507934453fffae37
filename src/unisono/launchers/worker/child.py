"""The first code of every worker: tie its life to the launcher's, run the user's program, report a failure.

In: ``child LAUNCHER_PID DIRECTORY KIND TARGET ARGS...`` and the variables of `worker_environment`. Out: the
exit code; on failure also ``error-<rank>.json`` in the directory. The traceback is not printed here: the
launcher prints the one that matters. Must not import torch.
"""

import contextlib
import faulthandler
import importlib
import importlib.util
import io
import os
import pickle
import runpy
import signal
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path

from unisono.errors import ConfigError, DataError, RunStopped
from unisono.launchers.scratch import meet_in
from unisono.launchers.spec import BACKEND_VARIABLE
from unisono.launchers.supervision.alone import has_trained_alone
from unisono.launchers.supervision.channels import LIVE_VARIABLE
from unisono.launchers.supervision.failure import FailureReport
from unisono.launchers.supervision.stacks import STACK_SIGNAL, stack_file
from unisono.launchers.worker.environment import JOINS_VARIABLE
from unisono.launchers.worker.local_rank import with_local_rank
from unisono.launchers.worker.returned import keep
from unisono.system.heartbeat import HEARTBEAT_VARIABLE, HeartbeatPage
from unisono.system.leaving import leave_groups_at_exit
from unisono.system.messages import tell_uncaught
from unisono.system.processes import die_with_parent

FUNCTION_FILE = "call.pickle"
# Set on the starting program's module while it is loaded again in a worker; `launch` refuses to run meanwhile.
LOADING_MARK = "__unisono_loading__"

_EXIT_GRACE_S = 5.0
_INTERRUPTED = 130
_USAGE_ERROR = 2


def main(argv: list[str]) -> int:
    """Run one worker and return its exit code.

    Args:
        argv: Process id of the launcher, private directory of the launch, kind (``script``, ``module``,
            ``program`` or ``function``), target, and the program's own arguments.
    """
    parent, directory, kind, target, *args = argv
    die_with_parent(int(parent))
    faulthandler.enable()
    local_rank = int(os.environ["LOCAL_RANK"])
    rank = int(os.environ.get(JOINS_VARIABLE) or os.environ["RANK"])  # its number
    # Open for the life of the process: the handler, in C, writes to the descriptor.
    descriptor = os.open(stack_file(directory, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True)
    meet_in(directory)
    leave_groups_at_exit()
    pass_over_ended_loaders()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `group` held it back until here
        if backend := os.environ.get(BACKEND_VARIABLE):
            importlib.import_module(backend).install()  # chosen, and named, by who started the launch
        if kind == "script":
            run_script(target, args, local_rank)
        elif kind == "module":
            run_module(target, args, local_rank)
        elif kind == "program":
            # The same process goes on as another program, so that it ends with the launcher and its end is seen.
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by the interpreter; a new program would inherit that
                signal.signal(ignored, signal.SIG_DFL)
            os.execvp(target, [target, *args])
        else:
            _run_function(Path(directory) / target, rank)
    except BaseException as error:  # noqa: BLE001 - also SystemExit, KeyboardInterrupt and torch's CheckpointException
        _ignore_children()
        code = _exit_code(error)
        if code != 0 and not isinstance(error, RunStopped):
            FailureReport.from_exception(error, rank, code).save(directory)
            tell_uncaught(error)
            # A thread that keeps the failed process from ending would keep its peers waiting for it. What it has to
            # show (to no one: the failure is told already) may come from a machine that is merely slow.
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            with contextlib.suppress(RuntimeError):  # no memory for its thread, probably: that was the failure then
                faulthandler.dump_traceback_later(_EXIT_GRACE_S, exit=True, file=nowhere)
        return code
    finally:
        # The interpreter stops its threads before it is gone: silence means nothing from here on.
        heartbeat = HeartbeatPage(os.environ[HEARTBEAT_VARIABLE])
        if not heartbeat.read().pid and has_trained_alone():
            heartbeat.was_alone()
        heartbeat.leave()
    return 0


def pass_over_ended_loaders() -> None:
    """Do not show what torch raises in the `__del__` of a loader whose processes were ended together with this one."""
    shown = sys.unraisablehook

    def show(told: "sys.UnraisableHookArgs") -> None:
        place = getattr(told.object, "__qualname__", "")
        if not (place.endswith("DataLoaderIter.__del__") and str(told.exc_value).startswith("DataLoader worker")):
            shown(told)

    sys.unraisablehook = show


def _ignore_children() -> None:
    """Take away torch's handler that raises when a data loading process dies: it would hide the failure at hand."""
    for _ in range(2):  # a signal that came before is handled inside the first call
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        except RuntimeError:
            continue
        return


def _exit_code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    if not isinstance(error, SystemExit):
        return _USAGE_ERROR if isinstance(error, ConfigError | DataError) else 1
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    sys.stderr.write(f"{error.code}\n")  # as the interpreter does for sys.exit("text")
    return 1


def run_script(path: str, args: list[str], local_rank: int) -> None:
    """Run a file as ``python path args...`` would: its module stays ``__main__`` until the process ends."""
    with io.open_code(os.path.abspath(path)) as file:  # noqa: PTH100 - resolve() would follow links
        source = file.read()
    sys.argv = [path, *with_local_rank(source, args, local_rank)]
    sys.path.insert(0, str(Path(path).resolve().parent))
    _execute(_new_module("__main__", path), source)


def run_module(name: str, args: list[str], local_rank: int) -> None:
    """Run a module as ``python -m name args...`` would."""
    sys.path.insert(0, str(Path.cwd()))
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    source = b""
    if spec is not None and spec.has_location and spec.origin and spec.origin.endswith(".py"):
        source = Path(spec.origin).read_bytes()
    sys.argv = [name, *with_local_rank(source, args, local_rank)]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_function(file: Path, rank: int) -> None:
    """Call the function that `launch` wrote down, and keep what rank 0's returns."""
    call = pickle.loads(file.read_bytes())  # written by our own launcher into its private directory
    sys.path[:] = call["sys_path"]
    if call["main_module"]:
        _load_main_module(call["main_module"])
    elif call["main_file"]:
        _load_main_file(call["main_file"])
    if call["module"]:
        function = getattr(importlib.import_module(call["module"]), call["name"])
        args, kwargs = pickle.loads(call["payload"])
    else:
        function, args, kwargs = pickle.loads(call["payload"])  # as cloudpickle wrote it
    returned = function(*args, **kwargs)
    if call["results"] and (rank == 0 or LIVE_VARIABLE in os.environ):  # rank 0 may have died, others take its place
        keep(call["results"], rank, returned, by_value=not call["module"])


def _load_main_file(path: str) -> None:
    """Load the starting program under another name: its ``if __name__ == "__main__"`` part stays out."""
    sys.argv = [path]
    module = _new_module("__mp_main__", path)
    # Pickles and the function's own module name say __main__.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    setattr(module, LOADING_MARK, True)
    _execute(module, Path(path).read_bytes())
    delattr(module, LOADING_MARK)


def _load_main_module(name: str) -> None:
    sys.argv = [name]
    marked = sys.modules["__mp_main__"] = types.ModuleType("__mp_main__")
    setattr(marked, LOADING_MARK, True)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = importlib.import_module(name)


def _new_module(name: str, path: str) -> types.ModuleType:
    absolute = os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links
    module = types.ModuleType(name)
    module.__file__ = absolute
    module.__loader__ = SourceFileLoader(name, absolute)
    # Multiprocessing and pickle look the program up by this name, also after its last line.
    sys.modules[name] = module
    return module


def _execute(module: types.ModuleType, source: bytes) -> None:
    exec(compile(source, str(module.__file__), "exec", dont_inherit=True), module.__dict__)


if __name__ == "__main__":
    _self = sys.modules["__main__"]  # the user's program takes this name; these functions must live on
    sys.exit(main(sys.argv[1:]))
