"""What is changed in torch while a run is open: everything is found in this torch, and put back."""

import gc
import re
import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn import functional as F
from torch.optim import optimizer as optimizers

import unisono
from unisono.determinism import loss_hooks


def names():
    return [(place, name) for place, name, _ in loss_hooks._looks()] + [(functional, "_resolve_group")]


def state():
    return [vars(place)[name] for place, name in names()] + [len(optimizers._global_optimizer_pre_hooks)]


def test_this_torch_has_every_name():
    """A torch that has moved one of them is noticed here: habits would be seen no more."""
    assert [(place, name) for place, name in names() if name not in vars(place)] == []
    assert len(names()) > 10


@pytest.mark.slow
def test_everything_is_put_back(toy):
    """Open runs change torch, the last one's end changes it back; a run that nobody closes goes with its object."""
    gc.collect()
    for left in [one for one in gc.get_objects() if type(one) is unisono.Run]:
        left.close()  # that other tests have left open
    before = state()
    first = unisono.Run()
    inside = state()
    assert all(now is not was for now, was in zip(inside[:-2], before, strict=False))
    second = unisono.Run()
    assert state() == inside
    first.close()
    first.close()
    assert state() == inside
    del second
    gc.collect()
    assert state() == before
    with toy.run() as (run, model, _):
        batch = next(run.steps(run.loader(toy.data, batch_size=12), epochs=1))
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        assert state()[-2] is not before[-2]  # imported in the meantime, or before
    assert state() == before


def test_who_comes_after_us_stays(toy):
    """What a program has put around a name while a run was open is not thrown away at its end."""
    own = vars(nn.Module)["zero_grad"]
    try:
        with toy.run() as (_, model, _):
            ours = vars(nn.Module)["zero_grad"]
            nn.Module.zero_grad = lambda self: ours(self)
            theirs = vars(nn.Module)["zero_grad"]
        assert vars(nn.Module)["zero_grad"] is theirs
        model.zero_grad()
    finally:
        nn.Module.zero_grad = own


@pytest.fixture
def group():
    """A process group of one."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


MEETINGS = {
    "all_reduce": lambda x: dist.all_reduce(x.detach().clone()),
    "all_gather": lambda x: dist.all_gather([torch.empty_like(x)], x.detach()),
    "broadcast": lambda x: dist.broadcast(x.detach().clone(), 0),
    "barrier": lambda x: dist.barrier(),
    "all_gather_object": lambda x: dist.all_gather_object([None], 1),
    "broadcast_object_list": lambda x: dist.broadcast_object_list([1], 0),
    "reduce": lambda x: dist.reduce(x.detach().clone(), 0),
    "reduce_scatter": lambda x: dist.reduce_scatter(torch.empty_like(x), [x.detach()]),
    "all_to_all": lambda x: dist.all_to_all([torch.empty_like(x)], [x.detach()]),
    "all_reduce of another": lambda x: functional.all_reduce(x, "sum", dist.group.WORLD),
    "broadcast of another": lambda x: functional.broadcast(x, 0, dist.group.WORLD),
}


@pytest.mark.parametrize("strategy", ["exact", "fsdp", "pipeline"])
def test_torch_s_collectives_are_refused(toy, group, strategy):
    """Alone in a group, so that a program is told before it has two workers; questions about the world are none."""
    with toy.run(strategy=strategy) as (run, model, _):
        for name, meet in MEETINGS.items():
            batch = next(run.steps(run.loader(toy.data, batch_size=12), epochs=1))

            def loss_function(micro, meet=meet):
                assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "gloo")
                out = model(micro.x)
                meet(out)
                return F.cross_entropy(out, micro.y)

            with pytest.raises(unisono.PlaceError) as caught:
                run.step(batch, loss_function)
            where = rf"{name.partition(' ')[0]}\w* was called inside the loss function \({__file__}:\d+\)"
            assert re.match(rf"step 1: torch\.distributed's {where}", str(caught.value)), caught.value


def test_ddp_may_meet(toy, group):
    """Under ddp the loss function may gather from other ranks, as programs written for it do."""
    with toy.run(strategy="ddp", replicas=None) as (run, model, _):
        seen = []

        def loss_function(micro):
            out = model(micro.x)
            dist.all_reduce(seen_now := out.detach().sum())
            seen.append(seen_now)
            return F.cross_entropy(out, micro.y)

        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
            run.step(batch, loss_function)
        assert len(seen) == 5


def test_sync_batch_norm_is_refused(toy):
    """Before the first step, by the layer's name; under ddp it is torch's affair."""

    def build():
        return nn.Sequential(nn.Linear(6, 8), nn.SyncBatchNorm(8), nn.Linear(8, 4))

    for strategy in ("exact", "fsdp", "dp"):
        with (
            pytest.raises(unisono.ConfigError, match="'1' is a SyncBatchNorm"),
            toy.run(build=build, strategy=strategy),
        ):
            pass
    with pytest.raises(ValueError, match="only work with GPU"), toy.run(build=build, strategy="ddp"):
        pass
    assert not dist.is_initialized()  # what ddp had made for itself
    with toy.run(build=build, strategy="allreduce"):
        pass


def test_compiled_models(toy):
    """torch.compile works with what is watched: the bits of the graph's own kernels, no break, and habits are seen."""
    torch._dynamo.reset()
    with toy.run() as (run, model, _):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
            run.step(batch, lambda micro: F.cross_entropy(compiled(micro.x), micro.y))
            if batch.step == 4:
                break
        expected = toy.train(epochs=1, stop_after=4)[0]
        assert run.fingerprint() == expected
        batch = next(run.steps(run.loader(toy.data, batch_size=12), epochs=1))
        with pytest.raises(unisono.StepError, match=r"backward\(\) was called inside"):
            run.step(batch, lambda micro: F.cross_entropy(compiled(micro.x), micro.y).backward())
    assert "torch._dynamo" in sys.modules
