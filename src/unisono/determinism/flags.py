"""Torch's flags that a program may set and bits depend on: read, recorded and compared; never set.

What a run sets itself is in `switches`. A flag stands here under the name by which a program sets it. Those that only
CUDA kernels look at count on CUDA devices alone. One that this torch does not have is left out.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, final

import torch

from unisono.errors import ConfigError, StepError

_COMPILERS = ("torch._dynamo.config", "torch._inductor.config")
_SET_BY_US = ("deterministic", "automatic_dynamic_shapes", "fail_on_recompile_limit_hit")
_BEYOND_BITS = ("trace", "compile_threads", "worker_start_method", "fx_graph_", "autotune_local_", "autotune_remote_")
_TINY, _ONE = 5e-324, 1.0
_GRAIN = 1 << 15  # elements from which torch's CPU kernels begin to divide work among threads
_EVERY = 100  # steps


def _flushes_denormals() -> bool:
    return _TINY * _ONE == 0


def _precision(backend: str, operation: str) -> str:
    """Return the precision of float32 operations: their own, else their backend's, else everybody's."""
    found: str = torch._C._get_fp32_precision_getter(backend, operation)
    return "ieee" if found == "none" else found


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # torch's answer where the newer names have been set too; they are recorded beside it
        return "see fp32_precision"


_CUBLAS = "torch.backends.cuda.matmul"
_FLAGS: dict[str, str | Callable[[], Any]] = {
    "torch.set_flush_denormal": _flushes_denormals,
    "torch.set_default_dtype": lambda: str(torch.get_default_dtype()),
    "torch.set_autocast_dtype('cpu')": lambda: str(torch.get_autocast_dtype("cpu")),
    "torch.set_float32_matmul_precision": _matmul_precision,
    "torch.backends.mkldnn.matmul.fp32_precision": lambda: _precision("mkldnn", "matmul"),
    "torch.backends.mkldnn.conv.fp32_precision": lambda: _precision("mkldnn", "conv"),
    "torch.backends.mkldnn.rnn.fp32_precision": lambda: _precision("mkldnn", "rnn"),
    "torch.backends.mkldnn.enabled": "_get_mkldnn_enabled",
    "torch.backends.mkldnn.deterministic": "_get_mkldnn_deterministic",
    "torch.backends.nnpack.set_flags": "_get_nnpack_enabled",
    "torch.backends.cuda.enable_flash_sdp": "_get_flash_sdp_enabled",
    "torch.backends.cuda.enable_math_sdp": "_get_math_sdp_enabled",
    "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp": "_get_math_sdp_allow_fp16_bf16_reduction",
    "torch.nn.attention.sdpa_kernel(set_priority=True)": "_get_sdp_priority_order",
}  # fmt: skip
_ON_CUDA: dict[str, str | Callable[[], Any]] = {
    "torch.set_autocast_dtype('cuda')": lambda: str(torch.get_autocast_dtype("cuda")),
    "torch.backends.cuda.matmul.fp32_precision": lambda: _precision("cuda", "matmul"),
    "torch.backends.cudnn.conv.fp32_precision": lambda: _precision("cuda", "conv"),
    "torch.backends.cudnn.rnn.fp32_precision": lambda: _precision("cuda", "rnn"),
    f"{_CUBLAS}.allow_fp16_reduced_precision_reduction": "_get_cublas_allow_fp16_reduced_precision_reduction",
    f"{_CUBLAS}.allow_bf16_reduced_precision_reduction": "_get_cublas_allow_bf16_reduced_precision_reduction",
    f"{_CUBLAS}.allow_fp16_accumulation": "_get_cublas_allow_fp16_accumulation",
    "torch.backends.cuda.preferred_blas_library": "_get_blas_preferred_backend",
    "torch.backends.cuda.preferred_linalg_library": "_get_linalg_preferred_backend",
    "torch.backends.cuda.enable_mem_efficient_sdp": "_get_mem_efficient_sdp_enabled",
    "torch.backends.cuda.enable_cudnn_sdp": "_get_cudnn_sdp_enabled",
    "torch.backends.cudnn.enabled": "_get_cudnn_enabled",
    "torch.backends.cudnn.depthwise_kernel": "_get_cudnn_depthwise_kernel",
}


def read_flags(device: str) -> dict[str, Any]:
    """Return the flags that count on a type of device, as JSON's types."""
    readers = _FLAGS | (_ON_CUDA if device == "cuda" else {})
    found = {name: value for name, how in readers.items() if (value := _read(how)) is not None}
    return found | {"torch.backends.opt_einsum": _einsum()}


def check_threads(threads: int) -> None:
    """Refuse threads of torch's that treat denormal numbers otherwise than this one.

    `torch.set_flush_denormal` acts on the thread that calls it and those it starts later; torch starts its own with
    the first large operation.

    Raises:
        ConfigError: There are some.
    """
    if threads == 1:
        return
    flushed = torch.full((_GRAIN * threads,), _TINY, dtype=torch.float64).mul_(_ONE).eq_(0)
    if flushed.any() != flushed.all():
        raise ConfigError(
            f"torch.set_flush_denormal() was called after the first large operation of torch: only some of the "
            f"{threads} threads of this process flush denormal numbers, so bits depend on which one computes what. "
            "Hint: torch.set_flush_denormal(True) as the first line after 'import torch', or threads=1 (--threads 1)."
        )


@final
class FlagWatch:
    """Sees to it that a run computes with the flags that it has recorded; those count that are set now for this type of
    device.
    """

    def __init__(self, device: str) -> None:
        self._device, self._recorded = device, read_flags(device)
        self._is_begun = False

    def check(self, step: int, *, is_last: bool = False) -> None:
        """Refuse (`StepError`) other flags than those recorded; looks at the first, the last and each 100th step."""
        if self._is_begun and step % _EVERY and not is_last:
            return
        self._is_begun = True
        if lines := compare_flags(self._recorded, read_flags(self._device)):
            raise StepError(
                f"torch computes with other flags at step {step} than at run.prepare(), where they were recorded: "
                f"{'; '.join(lines)}. Hint: set them before run.prepare(), or inside the loss function and back."
            )


def compare_flags(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return one line for each flag that differs: name, before, after; pure."""
    return [
        f"{name}: {before.get(name)!r} -> {after.get(name)!r}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def _read(how: str | Callable[[], Any]) -> Any:
    if not isinstance(how, str):
        return how()
    getter = getattr(torch._C, how, None)
    value = None if getter is None else getter()
    if isinstance(value, tuple | list):
        return list(value)
    return value if isinstance(value, str | bool | None) else str(value)


def _einsum() -> str:
    """Return in which order `torch.einsum` contracts: another one adds in another order."""
    einsum = torch.backends.opt_einsum
    if not einsum.is_available():
        return "left to right"
    return str(einsum.strategy) if einsum.enabled else "left to right"


def compiler_settings() -> dict[str, str]:
    """Return the compiler's settings that are not as it comes and may change code, less those that a run sets itself.

    There are none where it has not been imported. It changes some itself while it compiles.
    """
    found: dict[str, str] = {}
    for name in _COMPILERS:
        module: Any = sys.modules.get(name)
        if module is None:
            continue
        ignored = getattr(module, "_compile_ignored_keys", ())
        for key, value in module._get_dict(skip_default=True).items():
            if key in (*_SET_BY_US, *ignored) or key.startswith(("_", *_BEYOND_BITS)):
                continue
            if value != module._config[key].default:
                found[f"{name}.{key}"] = repr(value)
    return found
