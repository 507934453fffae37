"""Runs whose own loop carries a variable from iteration to iteration: told before the first step of each launch."""

import warnings

import pytest
import torch
from torch.nn import functional as F

from unisono.determinism.source.loop_variables import LoopVariable
from unisono.train.guards.loop_carried import _words

TOLD = (
    r"`k` \(line \d+\) is carried from iteration to iteration by your own loop, and decides in line \d+ what is trained"
)


def count(toy, out, last, wrap=iter):
    """A loop of a counter of its own, which weighs the loss."""
    with toy.run(out=out) as (run, model, _):
        k, steps = 0, []
        for batch in wrap(run.steps(run.loader(toy.data, batch_size=12), epochs=2, max_steps=last)):
            k += 2
            run.step(batch, lambda micro: (1 + k) * F.cross_entropy(model(micro.x), micro.y))  # noqa: B023
            steps.append(batch.step)
        return steps


def show(toy, out, last):
    """One that only shows what it counts."""
    with toy.run(out=out) as (run, model, _):
        total, steps = 0.0, []
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2, max_steps=last):
            total += run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            steps.append(batch.step)
            if batch.step % 4 == 0:
                print(total)
        return steps


def test_an_attribute_is_named_as_a_key_of_the_dictionary():
    """`run.register('model[3].p', ...)` could be no name of anything."""
    found = [LoopVariable("model[3].p", 11, 13, range(9, 14))]
    assert "dictionary, state['p'], and before the loop run.register('state', state)." in _words(found, "now")


def test_a_resumed_run_says_which_variable_starts_over(toy, tmp_path):
    """So does the first launch, if it is kept; one that has nothing to do does not."""
    with pytest.warns(UserWarning, match=TOLD) as told:
        assert count(toy, tmp_path, 4) == [1, 2, 3, 4]
    assert "starts over in a resumed run, so" in str(told[0].message)
    assert "keep it in a dictionary, state['k'], and" in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert count(toy, tmp_path, 4) == []
        assert count(toy, None, 4) == [1, 2, 3, 4]
    with pytest.warns(UserWarning, match=TOLD) as told:
        assert count(toy, tmp_path, 8) == [5, 6, 7, 8]
    assert len(told) == 1
    assert "starts over with this launch, so" in str(told[0].message)
    assert told[0].filename == __file__


def through(batches):
    """As a progress bar of another library."""
    yield from batches


def test_a_library_between(toy, tmp_path):
    """The loop is found through what goes between it and the steps."""
    with pytest.warns(UserWarning, match=TOLD):
        count(toy, tmp_path, 4, through)
    with pytest.warns(UserWarning, match=TOLD):
        count(toy, tmp_path, 8, through)


def test_all_variables_are_told_in_one_message(toy, tmp_path):
    def weigh(last):
        with toy.run(out=tmp_path) as (run, model, _):
            k, ema = 0, 0.0
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2, max_steps=last):
                k += 2
                value = run.step(batch, lambda micro: (k + ema) * F.cross_entropy(model(micro.x), micro.y))  # noqa: B023
                ema = 0.9 * ema + 0.1 * value

    with pytest.warns(UserWarning, match="are carried"):
        weigh(4)
    with pytest.warns(UserWarning, match=r"`k` \(line \d+\), `ema` \(line \d+\) are carried .*, and decide") as told:
        weigh(8)
    assert len(told) == 1
    assert "they start over" in str(told[0].message)


def test_what_is_registered_is_not_told(toy, tmp_path):
    """However the source does it."""
    with warnings.catch_warnings(), toy.run(out=tmp_path) as (run, model, _):
        warnings.simplefilter("error")
        state = {"k": 0}
        for name, part in {"state": state}.items():
            run.register(name, part)
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1, max_steps=2):
            state["k"] += 1
            run.step(batch, lambda micro: state["k"] * F.cross_entropy(model(micro.x), micro.y))


def test_what_is_only_shown_is_not_told(toy, tmp_path):
    """The control."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert show(toy, tmp_path, 4) + show(toy, tmp_path, 8) == [*range(1, 9)]


def test_a_program_without_source(toy, tmp_path):
    """What was typed, or built, says nothing, and trains."""
    for last in (4, 8):
        names = {"toy": toy, "out": tmp_path, "last": last, "F": F, "__name__": "typed"}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile(SOURCE, "<typed>", "exec"), names)
    assert names["steps"] == [5, 6, 7, 8]


SOURCE = """
with toy.run(out=out) as (run, model, _):
    k, steps = 0, []
    for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2, max_steps=last):
        k += 1
        run.step(batch, lambda micro: (1 + k) * F.cross_entropy(model(micro.x), micro.y))
        steps.append(batch.step)
"""


def rate_of_workers(parameters, world):
    return torch.optim.SGD(parameters, lr=0.1 * world.world_size)


def test_a_learning_rate_of_the_number_of_workers_is_told(toy):
    """Once, before the first step, where the loop's function makes it so or calls what does; nowhere else."""
    said = r"the learning rate in line \d+ is computed from the number of"
    with pytest.warns(UserWarning, match=said) as told, toy.run() as (run, model, _):
        rate_of_workers(model.parameters(), run.world)
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    assert len(told) == 1 and told[0].filename == __file__


def test_a_variable_is_told_once(toy, tmp_path):
    """Before the first step, and not again in the second, where the entry is seen to change."""
    with pytest.warns(UserWarning, match=r"^`state` \(line") as told, toy.run(out=tmp_path) as (run, model, _):
        state = {"k": 1.0}
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y) * state["k"])
            state["k"] = state["k"] * 0.9
    assert len(told) == 1


def weigh(toy, out, *, is_weighing):
    with toy.run(out=out) as (run, model, _):
        k = 1.0

        def loss(micro):
            found = F.cross_entropy(model(micro.x), micro.y)
            return found * k if is_weighing else found

        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
            run.step(batch, loss)
            k *= 0.9


def test_a_branch_that_is_not_taken_uses_nothing(toy, tmp_path):
    """One that is taken does."""
    weigh(toy, tmp_path / "plain", is_weighing=False)
    with pytest.warns(UserWarning, match=r"^`k` \(line"):
        weigh(toy, tmp_path / "weighed", is_weighing=True)
