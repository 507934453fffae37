"""Variables of this process's environment, beside those that say which of the ranks it is; read and set here alone.

Imports no torch.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from unisono.errors import WorldError

CPU_LEVELS = {"avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}}
"""Variables by which ATen, oneDNN and MKL use no newer instructions of the CPU, if set before torch is imported.

``MKL_ENABLE_INSTRUCTIONS`` is not among them: on CPUs of AMD it changes nothing.
"""

COMMAND = "UNISONO_COMMAND"
"""By which the command line tells its workers the command that has started them, and goes on with their run."""


def integer(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a variable that is a whole number; `WorldError` where it is none, or is missing without a default."""
    text = environ.get(name)
    if text is None:
        if default is None:
            raise WorldError(
                f"{name} is not set although other variables of its launcher are. "
                "Hint: start the program with `unisono run`, torchrun, srun or mpirun, or unset the others."
            )
        return default
    try:
        return int(text)
    except ValueError:
        raise WorldError(f"expected {name} to be a whole number, got {text!r}.") from None


def numeric_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that choose numeric kernels (ATen, oneDNN, MKL, CUDA, the compiler), sorted by name."""
    source = os.environ if environ is None else environ
    names = re.compile(
        r"(ATEN_CPU_CAPABILITY|(ONEDNN|DNNL)_(MAX_CPU_ISA|DEFAULT_FPMATH_MODE|CPU_ISA_HINTS)"
        r"|MKL_(CBWR|ENABLE_INSTRUCTIONS)|CUBLAS_WORKSPACE_CONFIG|NVIDIA_TF32_OVERRIDE|CUBLASLT_WORKSPACE_SIZE"
        r"|CUDNN_CONV_WSCAP_DBG|TORCH(DYNAMO|_COMPILE)_DISABLE"
        r"|TORCHINDUCTOR_(MAX_AUTOTUNE\w*|FREEZING|USE_FAST_MATH|EMULATE_PRECISION_CASTS|CPP_\w+))"
    )
    return {name: source[name] for name in sorted(source) if names.fullmatch(name)}


def told_command(environ: Mapping[str, str] | None = None) -> str:
    """Return the command by which our launcher was started; empty where it does not tell, or there is none."""
    return (os.environ if environ is None else environ).get(COMMAND, "")


def pin_workspace() -> None:
    """Let cuBLAS, before CUDA starts, have as much memory in every process: it chooses kernels by that, too."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def wants_plain_torch(environ: Mapping[str, str] | None = None) -> bool:
    """Whether torch is to be left as it is: ``UNISONO_PLAIN_TORCH=1``, which workers inherit."""
    return bool(integer(os.environ if environ is None else environ, "UNISONO_PLAIN_TORCH", 0))


def tell_compiler_to_be_deterministic() -> None:
    """Set what torch's compiler looks at when this process, or one that it starts, imports it."""
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"


def tell_compiler_to_treat_shapes_alike() -> None:
    """Set, in the same way, that no code is compiled for sizes in general unless the program asks for it."""
    os.environ["TORCH_DYNAMO_AUTOMATIC_DYNAMIC_SHAPES"] = "0"


def default_cache(environ: Mapping[str, str] | None = None) -> Path:
    """Return where what is worth keeping between runs goes: ``$XDG_CACHE_HOME/unisono`` or ``~/.cache/unisono``.

    A relative XDG_CACHE_HOME is ignored, as its specification asks.

    Args:
        environ: The environment; ``{}`` means the account's home, None this process's own.

    Source: https://specifications.freedesktop.org/basedir-spec/latest/
    """
    environ = os.environ if environ is None else environ
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "unisono"
    home = Path(environ.get("HOME") or Path.home())
    return home / ".cache" / "unisono"
