"""Torch's flags: each that bits depend on is seen, told by its name on resume and between ranks, and watched."""

import contextlib
import json
import subprocess
import sys

import pytest
import torch
from torch.backends import cudnn, mkldnn
from torch.nn import functional as F

import unisono
from cases import some_are_slow
from ranks import run_threads
from unisono.collectives.loopback import run_ranks
from unisono.determinism.flags import _FLAGS, _ON_CUDA, FlagWatch, check_threads, compare_flags, read_flags
from unisono.determinism.switches import describe_environment, drift
from unisono.train.steps.loop import check_alike

C = torch._C
"""How each flag is set: a setter, a value, and the value to put back."""
SETTERS = {
    "torch.set_flush_denormal": (torch.set_flush_denormal, True, False),
    "torch.set_default_dtype": (torch.set_default_dtype, torch.float64, torch.float32),
    "torch.set_autocast_dtype('cpu')": (lambda to: torch.set_autocast_dtype("cpu", to), torch.half, torch.bfloat16),
    "torch.set_float32_matmul_precision": (torch.set_float32_matmul_precision, "medium", "highest"),
    "torch.backends.mkldnn.enabled": (C._set_mkldnn_enabled, False, True),
    "torch.backends.mkldnn.deterministic": (C._set_mkldnn_deterministic, True, False),
    "torch.backends.nnpack.set_flags": (C._set_nnpack_enabled, False, True),
    "torch.backends.cuda.enable_flash_sdp": (torch.backends.cuda.enable_flash_sdp, False, True),
    "torch.backends.cuda.enable_math_sdp": (torch.backends.cuda.enable_math_sdp, False, True),
    "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp": (
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp, True, False,
    ),
    "torch.nn.attention.sdpa_kernel(set_priority=True)": (
        C._set_sdp_priority_order, [2, 1, 0, 3, 4], C._get_sdp_priority_order(),
    ),
    "torch.set_autocast_dtype('cuda')": (lambda to: torch.set_autocast_dtype("cuda", to), torch.bfloat16, torch.half),
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (
        lambda to: C._set_cublas_allow_fp16_reduced_precision_reduction(*to), (False, True), (True, True),
    ),
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
        lambda to: C._set_cublas_allow_bf16_reduced_precision_reduction(*to), (False, False), (True, True),
    ),
    "torch.backends.cuda.matmul.allow_fp16_accumulation": (C._set_cublas_allow_fp16_accumulation, True, False),
    "torch.backends.cuda.preferred_blas_library": (
        torch.backends.cuda.preferred_blas_library, "cublaslt", "cublas",
    ),
    "torch.backends.cuda.preferred_linalg_library": (
        torch.backends.cuda.preferred_linalg_library, "cusolver", "default",
    ),
    "torch.backends.cuda.enable_mem_efficient_sdp": (torch.backends.cuda.enable_mem_efficient_sdp, False, True),
    "torch.backends.cuda.enable_cudnn_sdp": (torch.backends.cuda.enable_cudnn_sdp, False, True),
    "torch.backends.cudnn.enabled": (C._set_cudnn_enabled, False, True),
    "torch.backends.cudnn.depthwise_kernel": (
        getattr(C, "_set_cudnn_depthwise_kernel", None), "cudnn", "auto",
    ),
}  # fmt: skip
for _backend, _names in {
    "mkldnn": {f"mkldnn.{op}": op for op in ("matmul", "conv", "rnn")},
    "cuda": {"cuda.matmul": "matmul", "cudnn.conv": "conv", "cudnn.rnn": "rnn"},
}.items():
    for _name, _op in _names.items():
        _is_cudnn = _backend == "cuda" and _op in ("conv", "rnn")
        SETTERS[f"torch.backends.{_name}.fp32_precision"] = (
            lambda to, backend=_backend, op=_op: C._set_fp32_precision_setter(backend, op, to),
            "ieee" if _is_cudnn else "tf32",
            "tf32" if _is_cudnn else "none",
        )
SETTABLE = [  # a torch for CPUs refuses to prefer libraries that it lacks
    name for name in _FLAGS | _ON_CUDA if name in read_flags("cuda") and ("library" not in name or torch.version.cuda)
]
ON_CPU = [name for name in _FLAGS if name in read_flags("cpu")]


@contextlib.contextmanager
def other(name):
    """Set one flag otherwise, and back."""
    setter, value, usual = SETTERS[name]
    setter(value)
    try:
        yield
    finally:
        setter(usual)


@pytest.mark.parametrize("name", SETTABLE)
def test_each_flag_is_seen_by_its_name(name):
    """Another value of any flag is a difference of that name, and none once it is put back."""
    before = read_flags("cuda")
    with other(name):
        names = [line.partition(": ")[0] for line in compare_flags(before, read_flags("cuda"))]
    assert name in names
    assert read_flags("cuda") == before
    assert (name in read_flags("cpu")) == (name in _FLAGS)  # what only CUDA looks at does not count on a CPU


@pytest.mark.parametrize("name", some_are_slow(ON_CPU, 4))
def test_a_resume_under_another_flag_is_refused(name, tmp_path):
    """A flag that was set otherwise in the first launch, or in the next one, is refused by its name."""
    train(tmp_path / "plain")
    with other(name):
        with pytest.raises(unisono.EnvironmentDrift) as caught:
            train(tmp_path / "plain", epochs=2)
        assert f"{name}: " in str(caught.value)
        train(tmp_path / "own")  # the user's own setting is respected,
    with pytest.raises(unisono.EnvironmentDrift) as caught:
        train(tmp_path / "own", epochs=2)  # and recorded
    assert f"{name}: " in str(caught.value)
    train(tmp_path / "own", epochs=2, allow_drift=True)


def test_ranks_under_other_flags_are_named():
    """Before the first step, whichever flag it is; the control: ranks that are alike pass."""
    names = ["", *ON_CPU]
    plain = describe_environment(threads=1, device=torch.device("cpu"))
    found = {}
    for name in names:
        with other(name) if name else contextlib.nullcontext():
            found[name] = describe_environment(threads=1, device=torch.device("cpu"))

    def program(transport, name):
        try:
            check_alike(transport, {}, found[name] if transport.rank == 1 else plain, {})
        except unisono.RankDivergence as error:
            return str(error)
        return ""

    for name in names:
        told = run_threads(program, 2, name)
        assert all(f"{name}: " in text if name else not text for text in told), told


def test_a_rank_with_a_flag_of_its_own_is_named_at_the_start():
    """Two real runs in threads: what counts per thread in torch differs, and `prepare` says so."""
    told = []

    def program(transport):
        if transport.rank == 1:
            torch.set_autocast_dtype("cpu", torch.half)
        with unisono.Run(replicas=2, transport=transport) as run:
            model = torch.nn.Linear(2, 2)
            with pytest.raises(unisono.RankDivergence, match=r"torch\.set_autocast_dtype\('cpu'\)") as caught:
                run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            told.append(str(caught.value))

    run_ranks(program, 2)
    assert len(told) == 2


def test_flags_that_change_while_it_runs_are_refused():
    """Set after `prepare`, or in the middle: found at the first step, or before the run ends."""
    with pytest.raises(unisono.StepError, match=r"at step 1 .*torch\.backends\.mkldnn\.enabled: True -> False"):
        train(before_loop=lambda: C._set_mkldnn_enabled(False))
    C._set_mkldnn_enabled(True)
    with pytest.raises(unisono.StepError, match=r"at step 2 .*enable_flash_sdp: True -> False.*Hint: set them before"):
        train(at_end=lambda: torch.backends.cuda.enable_flash_sdp(False))
    torch.backends.cuda.enable_flash_sdp(True)
    train()


def test_the_watch_looks_now_and_then():
    """At the first step, each hundredth and the last one: the others cost nothing."""
    watch = FlagWatch("cpu")
    watch.check(5)
    with other("torch.backends.mkldnn.enabled"):
        watch.check(6)
        for step, is_last in ((100, False), (7, True)):
            with pytest.raises(unisono.StepError):
                watch.check(step, is_last=is_last)


def test_one_setting_for_all_is_seen_in_each():
    """torch.backends.fp32_precision, and a backend's own, reach the operations that have none."""
    for backend in ("mkldnn", "cuda"):
        C._set_fp32_precision_setter(backend, "matmul", "none")
    before = read_flags("cuda")
    for backend in ("generic", "mkldnn", "cuda"):
        C._set_fp32_precision_setter(backend, "all", "bf16" if backend == "mkldnn" else "tf32")
        names = [line.partition(": ")[0] for line in compare_flags(before, read_flags("cuda"))]
        C._set_fp32_precision_setter(backend, "all", "none")
        assert ("torch.backends.mkldnn.conv.fp32_precision" in names) == (backend != "cuda")
        assert ("torch.backends.cuda.matmul.fp32_precision" in names) == (backend != "mkldnn")
    C._set_fp32_precision_setter("cuda", "conv", "tf32")
    C._set_fp32_precision_setter("cuda", "rnn", "tf32")
    assert read_flags("cuda") == before


@pytest.mark.slow
@pytest.mark.parametrize("when", ["first", "late"])
def test_denormals_are_flushed_by_all_threads_or_none(when):
    """Torch's threads inherit the mode when they begin; a mode set later reaches one of them, and is refused."""
    late = "torch.ones(1 << 20).mul_(2)" if when == "late" else ""
    program = f"""
import torch
from unisono.determinism.flags import check_threads
torch.set_num_threads(2)
{late}
torch.set_flush_denormal(True)
check_threads(2)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode == 0) == (when == "first"), done.stderr
    assert when == "first" or "only some of the 2 threads" in done.stderr


def test_one_thread_needs_no_look(monkeypatch):
    """With one thread there are no others, and no pool is made."""
    monkeypatch.setattr(torch, "full", None)
    check_threads(1)


def test_flags_of_an_older_run_are_unknown():
    """A run directory that recorded none goes on; the ranks of a launch always know them."""
    environment = describe_environment(threads=1, device=torch.device("cpu"))
    older = {name: value for name, value in environment.items() if name != "flags"}
    assert drift(older, environment) == drift(environment, older) == []


def test_an_older_directory_learns_the_flags(tmp_path):
    """It is gone on with, and from then on holds the flags it was gone on under."""
    train(tmp_path)
    file = tmp_path / "environment.json"
    environment = json.loads(file.read_text())
    flags = environment.pop("flags")
    file.write_text(json.dumps(environment))
    train(tmp_path, epochs=2)
    assert json.loads(file.read_text())["flags"] == flags
    with other("torch.backends.mkldnn.enabled"), pytest.raises(unisono.EnvironmentDrift):
        train(tmp_path, epochs=3)


def train(out=None, *, epochs=1, before_loop=lambda: None, at_end=lambda: None, **settings):
    """Train two steps an epoch."""
    torch.manual_seed(0)
    x, y = torch.ones(4, 3, dtype=torch.float32), torch.zeros(4, dtype=torch.int64)
    with unisono.Run(seed=0, replicas=2, out=out, **settings) as run:
        model = torch.nn.Linear(3, 2).to(torch.float32)
        torch.nn.init.constant_(model.weight, 0.25)  # what is drawn depends on the default dtype
        torch.nn.init.zeros_(model.bias)
        model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        before_loop()
        for batch in run.steps(run.loader(unisono.ArrayDataset(x, y), batch_size=2), epochs=epochs):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            if batch.step == 2 * epochs:
                at_end()
        return run.fingerprint()


assert mkldnn.enabled and cudnn.enabled  # what the table puts back
