"""Habits inside the loss function: refused at their line in the step in which they happen, on any number of ranks."""

import copy
import inspect
import itertools
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import unisono
from forks import run_forked
from strategies.conformance import CASES
from train import habit_programs
from unisono.collectives.loopback import run_ranks
from unisono.strategies.catalog import find


class Habits:
    """What programs do inside a loss function; `again` is what a loss function keeps from call to call."""

    def __init__(self, run, model, optimizer):
        self.run, self.model, self.optimizer = run, model, optimizer
        self.other = nn.Linear(4, 1)
        self.others = torch.optim.Adam(self.other.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.ones(1)], lr=0.1), 1)
        self.cosine = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.optimizer, 5)
        self.scaler = torch.amp.GradScaler("cpu")

    def loss(self, micro):
        return F.cross_entropy(self.model(micro.x), micro.y)

    def backward(self, micro, loss):
        loss.backward(retain_graph=True)

    def backward_by_function(self, micro, loss):
        torch.autograd.backward([loss], retain_graph=True)

    def backward_for_the_input(self, micro, loss):
        x = micro.x.clone().requires_grad_()
        F.cross_entropy(self.model(x), micro.y).backward()

    def backward_into_a_weight(self, micro, loss):
        loss.backward(inputs=[next(self.model.parameters())], retain_graph=True)

    def step(self, micro, loss):
        self.optimizer.step()

    def step_of_another(self, micro, loss):
        self.others.step()

    def clear(self, micro, loss):
        self.optimizer.zero_grad()

    def clear_model(self, micro, loss):
        self.model.zero_grad()

    def clear_layer(self, micro, loss):
        next(module for module in self.model.modules() if isinstance(module, nn.Linear)).zero_grad(set_to_none=False)

    def scale(self, micro, loss):
        return self.scaler.scale(loss)

    def move_schedule(self, micro, loss):
        self.schedule.step()

    def move_cosine(self, micro, loss):
        self.cosine.step()

    def wrap(self, micro, loss):
        return F.cross_entropy(nn.DataParallel(self.model)(micro.x), micro.y)


REFUSED = {
    "backward": r"backward\(\) was called inside the loss function",
    "backward_by_function": r"backward\(\) was called inside",
    "backward_for_the_input": r"take torch\.autograd\.grad",
    "backward_into_a_weight": r"second gradient",
    "step": r"optimizer\.step\(\) was called inside",
    "step_of_another": r"Adam\.step\(\) was called inside .* the weights would depend on the number of workers"
    r".*Hint: give the run all models .*run\.step\(batch, loss, update='D'\)",
    "clear": r"optimizer\.zero_grad\(\) was called inside",
    "clear_model": r"model\.zero_grad\(\) was called inside",
    "clear_layer": r"model\.zero_grad\(\) was called inside",
    "scale": r"GradScaler\.scale\(\) was called inside",
    "move_schedule": r"StepLR\.step\(\) was called inside",
    "wrap": r"calls the model through DataParallel .*Hint: leave DataParallel\(\.\.\.\) out",
    "move_cosine": r"CosineAnnealingWarmRestarts\.step\(\) was called inside",
}


def play(toy, habit, *, transport=None, first=1, batch_size=12, **settings):
    """Train with a habit from step `first` on; return what was raised, the step, and whether weights stayed."""
    with toy.run(**settings, **({"transport": transport} if transport else {})) as (run, model, optimizer):
        habits = Habits(run, model, optimizer)
        act, step = getattr(habits, habit), 0

        def loss_function(micro):
            loss = habits.loss(micro)
            result = act(micro, loss) if step >= first else None
            return loss if result is None else result

        kept = [parameter.detach().clone() for parameter in [*model.parameters(), *habits.other.parameters()]]
        try:
            for batch in run.steps(run.loader(toy.data, batch_size=batch_size), epochs=1):
                step = batch.step
                kept = [parameter.detach().clone() for parameter in [*model.parameters(), *habits.other.parameters()]]
                run.step(batch, loss_function)
        except unisono.StepError as error:
            now = [*model.parameters(), *habits.other.parameters()]
            return str(error), step, all(map(torch.equal, kept, now))
        return "", step, False


def line_of(habit):
    """Return the line of a habit that does it: its last."""
    lines, start = inspect.getsourcelines(getattr(Habits, habit))
    return f"{__file__}:{start + len(lines) - 1}"


@pytest.mark.parametrize("habit", REFUSED)
def test_habits_are_refused_where_they_happen(toy, habit):
    """In the first step, at the line of the program, with what to write; weights are as they were."""
    message, step, is_untouched = play(toy, habit)
    assert re.search(REFUSED[habit], message), message
    assert "Hint: " in message
    assert f"({line_of(habit)})" in message
    assert (step, is_untouched) == (1, True)


def test_torchs_own_wrapper_around_the_prepared_model(toy):
    """On two ranks it trained other weights in silence, on three it hung; another model may be wrapped."""
    heard = []

    def program(transport):
        with toy.run(transport=transport) as (run, model, _):
            (batch,) = itertools.islice(run.steps(run.loader(toy.data, batch_size=12), epochs=1), 1)
            for each in (nn.Linear(8, 3), model):
                wrapper = object.__new__(nn.parallel.DistributedDataParallel)
                nn.Module.__init__(wrapper)
                wrapper.module = each
                try:
                    run.step(batch, lambda micro, wrapper=wrapper: wrapper(micro.x))
                except (unisono.StepError, AttributeError) as error:
                    heard.append((type(error).__name__, "DistributedDataParallel(...) out" in str(error)))

    run_ranks(program, 1)
    assert heard == [("AttributeError", False), ("StepError", True)]


@pytest.mark.parametrize("habit", ["backward", "step_of_another", "clear"])
def test_a_habit_of_every_fourth_step(toy, habit):
    """What begins in the fourth step is refused there, on 1, 2 and 3 ranks alike."""
    for ranks in (1, 2, 3):
        for message, step, is_untouched in run_ranks(
            lambda transport: play(toy, habit, transport=transport, first=4), ranks
        ):
            assert message.startswith("step 4: ")
            assert (step, is_untouched) == (4, True)


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.startswith("ps") and case != "pipeline-interleaved"]
)
def test_every_strategy_refuses(toy, case):
    """Backward and zero_grad are seen whatever calls the model: wrappers, sharded weights, stages."""
    name, options = CASES[case]
    options = {**options, "stages": 2} if case == "pipeline-gpipe" else options
    for habit in ("backward", "clear_model"):
        message, step, _ = play(toy, habit, strategy=find(name, options), replicas=None)
        assert "inside the loss function" in message, case
        assert step == 1


def test_servers_hear_of_it(toy):
    """A worker that is refused ends the run for its server too."""
    with pytest.raises(unisono.StepError, match=r"backward\(\) was called inside"):
        run_ranks(lambda transport: must(play(toy, "backward", transport=transport, strategy="ps", replicas=None)), 2)


def must(played):
    """Raise what `play` has caught."""
    if played[0]:
        raise unisono.StepError(played[0])


class Rightful(Habits):
    """What a loss function may do; nothing of it may change a bit of the training."""

    def nothing(self, micro, loss):
        pass

    def look_for_the_input(self, micro, loss):
        x = micro.x.clone().requires_grad_()
        F.cross_entropy(self.model(x), micro.y).backward(inputs=[x])
        assert x.grad is not None

    def elsewhere(self, micro, loss):
        point = torch.ones(3, requires_grad=True)
        point.square().sum().backward()
        assert point.grad.tolist() == [2, 2, 2]
        (2 * nn.Parameter(point.detach())).sum().backward()

    def inner_loop(self, micro, loss):
        clone = copy.deepcopy(self.model)
        inner = torch.optim.Adam(clone.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(inner, 1)
        before = clone(micro.x).sum().item()
        for _ in range(2):
            inner.zero_grad()
            F.cross_entropy(clone(micro.x), micro.y).backward()
            inner.step()
            schedule.step()
        assert clone(micro.x).sum().item() != before

    def another_model(self, micro, loss):
        self.other.zero_grad()
        assert self.other(self.model(micro.x)).requires_grad

    def scaler_that_is_off(self, micro, loss):
        return torch.amp.GradScaler("cpu", enabled=False).scale(loss)

    def checkpointed(self, micro, loss):
        out = checkpoint(self.model, micro.x, use_reentrant=False)
        return F.cross_entropy(out, micro.y)

    def checkpointed_as_before(self, micro, loss):
        out = checkpoint(self.model, micro.x.clone().requires_grad_(), use_reentrant=True)
        return F.cross_entropy(out, micro.y)

    def penalty(self, micro, loss):
        grads = torch.autograd.grad(loss, [*self.model.parameters()], create_graph=True)
        return loss + 0 * sum(grad.square().sum() for grad in grads)

    def functional(self, micro, loss):
        weights = {name: value.detach() for name, value in self.model.named_parameters()}
        torch.func.grad(lambda own: torch.func.functional_call(self.model, own, micro.x).sum())(weights)


def train(toy, way, transport=None):
    with toy.run(**({"transport": transport} if transport else {})) as (run, model, optimizer):
        rightful = Rightful(run, model, optimizer)
        act = getattr(rightful, way)

        def loss_function(micro):
            loss = rightful.loss(micro)
            result = act(micro, loss)
            return loss if result is None else result

        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
            run.step(batch, loss_function)
        return run.fingerprint()


@pytest.mark.parametrize("way", [name for name in vars(Rightful) if not name.startswith("_")])
def test_what_is_right_stays_right(toy, way):
    """Gradients for inputs, inner loops, checkpointing, other models: the bits of a loop without them."""
    expected = toy.train(epochs=1)[0]
    assert train(toy, way) == expected
    assert run_ranks(lambda transport: train(toy, way, transport), 2) == [expected] * 2


def test_an_inner_optimizer_that_is_kept(toy):
    """Made inside the loss function of one step and used in the next, it is another model's after all."""
    kept = []

    def loss_function(micro):
        if not kept:
            kept.append(torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1))
        kept[0].step()
        return F.cross_entropy(model(micro.x), micro.y)

    with toy.run() as (run, model, _), pytest.raises(unisono.StepError, match=r"step 2: SGD\.step\(\) was called"):
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
            run.step(batch, loss_function)


def test_gradients_that_leak_to_another_model(toy):
    """Backward into a critic inside the loss function, its step in the loop: this rank's gradients only; cleared, it
    may step.
    """
    with toy.run() as (run, model, _):
        critic = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)

        def loss_function(micro):
            out = model(micro.x)
            critic(out.detach()).mean().backward()
            return F.cross_entropy(out, micro.y)

        steps = run.steps(run.loader(toy.data, batch_size=12), epochs=1)
        run.step(next(steps), loss_function)
        with pytest.raises(
            unisono.StepError, match=r"SGD\.step\(\) \(.*apply gradients that a loss function has added"
        ):
            optimizer.step()
        optimizer.zero_grad()
        critic(torch.ones(1, 4)).sum().backward()
        before = critic.weight.clone()
        optimizer.step()
        assert not torch.equal(before, critic.weight)


@pytest.mark.filterwarnings("ignore:step 1. the loss sends gradients")
@pytest.mark.parametrize("first", [1, 2, 3])
def test_gradients_that_a_returned_loss_leaves(toy, first):
    """The centers of a loss, or a critic that it goes through, get this rank's gradients only: their optimizer may not
    step by these, whichever step it is and whenever they were cleared; but by gradients of the loop's own.
    """
    with toy.run() as (run, model, _):
        centers = nn.Parameter(torch.zeros(4, 4))
        optimizer = torch.optim.SGD([centers], lr=0.1)

        def loss_function(micro):
            out = model(micro.x)
            return F.cross_entropy(out, micro.y) + (out - centers[micro.y]).square().mean()

        for batch in run.steps(run.loader(toy.data, batch_size=12), max_steps=first):
            optimizer.zero_grad()
            run.step(batch, loss_function)
        with pytest.raises(
            unisono.StepError, match=r"SGD\.step\(\) \(.*by the loss that it has returned: gradients of one"
        ):
            optimizer.step()
        assert not centers.any()
        (optimizer if first < 3 else nn.ParameterList([centers])).zero_grad()
        if first == 2:
            centers.grad = None
        (centers - 1).square().sum().backward()
        optimizer.step()
        assert centers.all()


def test_the_model_s_own_optimizer_is_not_meant(toy):
    """A leaf that is made inside the loss, and frozen tensors, keep nobody from stepping."""
    expected = toy.train(epochs=1)[0]
    frozen, other = torch.ones(4), torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([other], lr=0.1)
    with toy.run() as (run, model, _):
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x.clone().requires_grad_()) * frozen, micro.y))
            other.grad = torch.ones(2)
            optimizer.step()
        assert run.fingerprint() == expected
    assert torch.allclose(other.detach(), torch.full((2,), 0.5))


def test_two_runs_by_turns(toy):
    """A loss of one run goes through the model of another, whose own step is not held up by that."""
    with toy.run() as (critics, critic, optimizer), toy.run() as (run, model, _):
        optimizer.register_step_post_hook(lambda *_: None)  # so that its steps are seen
        both = [each.steps(each.loader(toy.data, batch_size=12), epochs=1) for each in (critics, run)]
        before = critics.fingerprint()
        for one, other in zip(*both, strict=True):
            run.step(other, lambda micro: critic(torch.cat([model(micro.x), micro.x[:, :2]], 1)).square().mean())
            for parameter in critic.parameters():
                parameter.grad = None
            critics.step(one, lambda micro: F.cross_entropy(critic(micro.x), micro.y))
            run_s = run.fingerprint()
        assert critics.fingerprint() != before
        assert run_s == run.fingerprint()


@pytest.mark.parametrize("whose", ["the run's", "one for each"])
def test_an_optimizer_that_steps_within_the_backward_pass(toy, whose):
    """As memory is saved by hooks of parameters: it would move the weights once for every micro-batch."""
    with toy.run() as (run, model, optimizer):
        for parameter in model.parameters():
            own = optimizer if whose == "the run's" else torch.optim.SGD([parameter], lr=0.1)
            parameter.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
        before = run.fingerprint()
        batch = next(run.steps(run.loader(toy.data, batch_size=12), epochs=1))
        with pytest.raises(
            unisono.StepError, match=r"SGD\.step\(\) was called in a hook of the backward pass \(.*once for"
        ):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        assert run.fingerprint() == before


@pytest.mark.parametrize("way", ["term", "clear", "clear_model", "input", "grad"])
def test_gradients_that_the_loop_adds(toy, way):
    """A backward pass between two steps is not dropped in silence; cleared, or asked for the input alone, it may be."""
    expected = toy.train(epochs=1)[0]
    with toy.run() as (run, model, optimizer):

        def train():
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
                if batch.step == 2:
                    probe = toy.data[0][0][None].clone().requires_grad_()
                    loss = model.eval()(probe).sum()
                    model.train()
                    if way == "grad":
                        torch.autograd.grad(loss, probe)
                    else:
                        loss.backward(inputs=[probe] if way == "input" else None)
                    if way.startswith("clear"):
                        (optimizer if way == "clear" else model).zero_grad(set_to_none=False)

        if way == "term":
            said = rf"step 3: backward\(\) was called in the loop \({__file__}:\d+\) and has added a"
            with pytest.raises(unisono.StepError, match=said):
                train()
        else:
            train()
            assert run.fingerprint() == expected


def test_calls_of_the_run(toy):
    """run.evaluate, run.step and the run's transport inside the loss function; nobody waits, also with idle ranks."""

    def program(transport, call):
        with toy.run(transport=transport) as (run, model, _):

            def loss_function(micro):
                call(run, batch, model)
                return F.cross_entropy(model(micro.x), micro.y)

            batch = next(run.steps(run.loader(toy.data, batch_size=12), epochs=1))
            with pytest.raises(unisono.PlaceError) as caught:
                run.step(batch, loss_function)
            return str(caught.value)

    calls = {
        r"run.evaluate()": lambda run, batch, model: run.evaluate(
            toy.data, lambda m: (model(m.x), m.y), {"accuracy": unisono.Accuracy()}
        ),
        "run.step()": lambda run, batch, model: run.step(batch, lambda micro: model(micro.x).sum()),
        "all_gather_json": lambda run, batch, model: run.transport.all_gather_json(1),
        "barrier": lambda run, batch, model: run.transport.barrier(),
    }
    for name, call in calls.items():
        for ranks in (1, 2, 3):  # 4 replicas: on 3 ranks one of them calls the loss function twice
            for message in run_ranks(lambda transport, call=call: program(transport, call), ranks):
                assert f"{name} was called inside the loss function ({__file__}:" in message


def test_ranks_that_may_meet(toy):
    """With allreduce ranks may meet as under DDP, where all call the loss function equally often, and only there."""

    def program(transport, replicas):
        with toy.run(transport=transport, strategy="allreduce", replicas=replicas) as (run, model, _):

            def loss_function(micro):
                gathered = torch.empty(2 * len(micro.x))
                run.transport.all_gather(micro.x[:, 0].contiguous(), gathered)
                return F.cross_entropy(model(micro.x), micro.y) + gathered.mean()

            batch = next(run.steps(run.loader(toy.data, batch_size=12), epochs=1))
            return run.step(batch, loss_function)

    assert len(set(run_ranks(lambda transport: program(transport, 2), 2))) == 1
    with pytest.raises(unisono.PlaceError, match="the ranks call it 2, 1 times, so some would wait for ever"):
        run_ranks(lambda transport: program(transport, 3), 2)


@pytest.mark.slow
def test_three_processes():
    """What would hang or train nothing on real processes is refused on all of them alike, and ddp's own goes on."""
    told = run_forked(habit_programs.play, 3)
    for name, (*_, expected) in habit_programs.CASES.items():
        for rank, answers in enumerate(told):
            assert expected in answers[name], (name, rank)
            assert (answers[name] == "") == (expected == ""), (name, rank, answers[name])
            assert "CHANGED" not in answers[name], (name, rank)
