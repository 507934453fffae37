"""The rows of a certificate that are about GPUs alone: what they say of what their programs have found."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from experiments.certify import gpu_programs
from forks import run_forked
from ranks import run_processes
from unisono.experiments.certify import device_checks
from unisono.experiments.certify.bench import Bench
from unisono.experiments.certify.certificate import CERTIFIED, FAILED, NOT_RUN, TOLD
from unisono.experiments.certify.device_checks import NCCL_WAYS
from unisono.experiments.certify.device_programs import SPOILT, TOO_LITTLE
from unisono.experiments.certify.large_models import DDP, LARGE, PLAIN


def bench(tmp_path, device="fake:0", gpus=1):
    return Bench(scratch=tmp_path, device=device, is_quick=True, tell=print, gpus=gpus)


def test_bytes_that_a_group_of_one_moves(tmp_path, monkeypatch):
    """By gloo on the CPU, as by NCCL on a GPU: every bit, and a changed one is found."""
    found = run_forked(gpu_programs.moved, 1)[0]
    assert found.pop(SPOILT) == 1
    assert len(found) == 24
    assert not any(found.values())
    for changed, verdict in (({}, CERTIFIED), ({"float32, 1": 2}, FAILED), ({SPOILT: 0}, FAILED)):
        monkeypatch.setattr(Bench, "run", lambda *_, told=changed, **__: {**found, SPOILT: 1, **told})
        assert device_checks.moved(bench(tmp_path)).verdict == verdict
    assert device_checks.moved(bench(tmp_path, "cpu")).verdict == NOT_RUN


@pytest.mark.slow
def test_a_training_with_little_memory(tmp_path, monkeypatch):
    """Where it is enough, the fingerprint of all memory; else an error. A limit without effect is noticed."""
    found = run_processes(gpu_programs.pressed, 1)[0]
    trained = {share: told for share, told in found.items() if told != TOO_LITTLE}
    assert {"all", "100%"} <= trained.keys()
    assert len({*trained.values()}) == 1
    assert found["5%"] == TOO_LITTLE
    same = next(iter(trained.values()))
    for changed, verdict in (({}, CERTIFIED), ({"5%": same}, FAILED), ({"100%": "other"}, FAILED)):
        monkeypatch.setattr(Bench, "run", lambda *_, told=changed, **__: {**found, **told})
        assert device_checks.pressed(bench(tmp_path)).verdict == verdict
    nothing = {**dict.fromkeys(found, TOO_LITTLE), "all": same}
    monkeypatch.setattr(Bench, "run", lambda *_, **__: nothing)
    assert device_checks.pressed(bench(tmp_path)).verdict == FAILED, "only all memory did: nothing was compared"
    assert device_checks.pressed(bench(tmp_path, "cpu")).verdict == NOT_RUN


def test_large_models_have_their_sizes():
    """Those of the papers: as many parameters, and scores of the right shapes."""
    counts = []
    for (build, make, *_), size in zip(LARGE.values(), (64, 8, 200), strict=True):
        x, y = make(2, size)
        with torch.device("meta"):
            model = build()
            assert F.cross_entropy(model(x.to("meta")), y.to("meta")).shape == ()
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
    assert counts == [11_689_512, 124_439_808, 1_214_594]


@pytest.mark.slow
def test_time_and_memory_of_large_models(tmp_path, monkeypatch):
    """Beside a plain loop and DDP: told, and whether the goal is met in both; never certified."""
    found = run_processes(gpu_programs.large, 1)[0]
    assert [*found] == [*LARGE]
    assert all([*ways] == [PLAIN, DDP, "exact, V = 1", "exact, V = 2"] for ways in found.values())
    assert all(0 < seconds < 60 and peak == 3 << 20 for ways in found.values() for seconds, peak in ways.values())
    for one, goal in (([1.0, 100], "met"), ([1.06, 100], "missed"), ([1.0, 106], "missed")):
        ways = {PLAIN: [0.9, 90], DDP: [1.0, 100], "exact, V = 1": one, "exact, V = 2": [2.0, 200]}
        monkeypatch.setattr(Bench, "run", lambda *_, ways=ways: {"a model": ways})
        row = device_checks.large(replace(bench(tmp_path), is_quick=False))
        assert row.verdict == TOLD
        assert [line.rpartition("goal ")[2] for line in row.found if "goal" in line] == [goal]
    assert device_checks.large(bench(tmp_path)).verdict == NOT_RUN
    assert device_checks.large(replace(bench(tmp_path, "cpu"), is_quick=False)).verdict == NOT_RUN


def test_one_process_a_gpu(tmp_path, monkeypatch):
    """All settings of NCCL and both orders must have the bits of one process; torch's own sums must not."""
    asked = []

    def train(self, trainings, workers, env=None, *, own=False, backwards=False):
        asked.append((workers, env or {}, own, backwards))
        way = next(name for name, each in NCCL_WAYS.items() if each == (env or {}))
        prints = {one.name: one.name for one in trainings} | ({"ddp": f"ddp {way}"} if own else {"ddp": "ddp"})
        return {name: {"fingerprint": wrong.get((name, backwards), each)} for name, each in prints.items()}

    def verdict(gpus):
        return device_checks.several_devices(bench(tmp_path, "cuda", gpus=gpus)).verdict

    monkeypatch.setattr(Bench, "train", train)
    wrong = {}
    assert verdict(4) == CERTIFIED
    assert (4, {}, True, True) in asked, "backwards"
    assert {each["NCCL_PROTO"] for _, each, *_ in asked if "NCCL_PROTO" in each} == {"Simple", "LL"}
    assert verdict(2) == CERTIFIED
    wrong = {("cnn fp32", True): "other"}
    row = device_checks.several_devices(bench(tmp_path, "cuda", gpus=4))
    assert row.verdict == FAILED
    assert "cnn fp32: DIFFERENT" in str(row.found)
    wrong = {("ddp", False): "one sum"}
    assert verdict(3) == FAILED, "torch's sums ought to differ"
    assert verdict(2) == CERTIFIED, "two numbers have one sum"
    wrong = {("ddp", False): "exact-6"}
    assert verdict(2) == FAILED
    for named, count in (("cuda", 1), ("cuda:0", 2)):
        assert "it needs two GPUs" in device_checks.several_devices(bench(tmp_path, named, gpus=count)).why_not
    assert "about GPUs" in device_checks.several_devices(bench(tmp_path, "cpu", gpus=2)).why_not


def test_processes_share_one_gpu_or_have_one_each(tmp_path, monkeypatch):
    """Where there are several, too: by the name of the first one, or of the one that was asked for."""
    asked = []
    monkeypatch.setattr(Bench, "run", lambda *given, **how: asked.append((*given[4:], how["own"])))
    for named in ("cuda", "cuda:1", "cpu"):
        bench(tmp_path, named, gpus=2).train([], 2)
    bench(tmp_path, "cuda", gpus=2).train([], 2, own=True, backwards=True)
    assert asked == [
        ("cuda:0", False, False), ("cuda:1", False, False), ("cpu", False, False), ("cuda", True, True),
    ]  # fmt: skip
