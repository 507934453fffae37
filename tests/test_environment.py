"""Variables beside those of the world."""

from types import MappingProxyType

from unisono.environment import numeric_variables


def test_numeric_variables_are_only_those_that_choose_kernels():
    """The variables that can change bits are recorded, sorted; others are not."""
    environ = {"PATH": "x", "MKL_CBWR": "AVX2", "ATEN_CPU_CAPABILITY": "default", "DNNL_MAX_CPU_ISA": "AVX2"}
    assert numeric_variables(MappingProxyType(environ)) == {
        "ATEN_CPU_CAPABILITY": "default",
        "DNNL_MAX_CPU_ISA": "AVX2",
        "MKL_CBWR": "AVX2",
    }
    compiler = {"TORCHINDUCTOR_FREEZING": "1", "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM": "1", "TORCH_COMPILE_DISABLE": "1"}
    assert numeric_variables(compiler | {"TORCHINDUCTOR_CACHE_DIR": "x"}) == compiler
    assert list(numeric_variables(environ)) == sorted(numeric_variables(environ))
