"""What ``--backend shm`` puts into a worker before its program: an import of torch.distributed that is noticed.

Imports no torch itself: the program may have to set torch's variables first. See `in_place_of_gloo`.
"""

import functools
import importlib.abc
import importlib.util
import inspect
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from typing import Any, final


def install() -> None:
    """Let the program's own import of torch.distributed give functions that make groups over shared memory."""
    sys.meta_path.insert(0, _Finder())


@final
class _Finder(importlib.abc.MetaPathFinder):
    functions = ("init_process_group", "new_group")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Take part in one import only: that of the module that defines the functions."""
        if fullname != "torch.distributed.distributed_c10d":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                for name in self.functions:
                    setattr(module, name, _with_shm(getattr(module, name)))

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _with_shm(make_group: Any) -> Any:
    signature = inspect.signature(make_group)

    @functools.wraps(make_group)
    def make(*args: Any, **kwargs: Any) -> Any:
        from unisono.collectives.shm import in_place_of_gloo

        return in_place_of_gloo.make_group(make_group, signature.bind(*args, **kwargs))

    return make
