"""Islands: DiLoCo as in plain torch, with the same bits on any number of ranks, also when interrupted in a round."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from cases import some_are_slow
from forks import run_forked
from ranks import once, run_processes, run_threads
from reference import bits
from strategies import islands_programs
from strategies.conformance import loss_of
from strategies.islands_programs import BATCH, by_hand, leg, start
from strategies.strategy_runs import toy_data
from unisono.errors import ConfigError, StepError, WorkerFailed
from unisono.strategies.islands.islands import Islands

pytestmark = pytest.mark.filterwarnings("ignore:the run ends")
CASES = {
    "plain": {},
    "pairs": {"settings": {"islands": 2}},
    "clip": {"clip_norm": 0.05, "kind": "SGD"},
    "state from the start": {"kind": "Adagrad", "island_steps": 2},
    "no momentum": {"settings": {"outer_lr": 1, "outer_momentum": 0}},
    "islands without a sample": {"samples": 18, "norm": "LayerNorm"},
}
STEPS = 8  # two rounds of three, and two steps of the next


@once
def alone():
    """Return the reports of all cases from a rank alone."""
    return run_threads(islands_programs.legs, 1, [{"steps": STEPS, **case} for case in CASES.values()])[0]


def same(report, expected):
    """Whether weights, islands, optimizer states, losses and ledger are equal."""
    parts = ("fingerprint", "losses", "state")
    return [report[part] == expected[part] for part in parts] == [True] * 3


def values_of(model):
    """Return the bytes of parameters and buffers."""
    return [bits(value) for value in model.state_dict().values()]


def played(**how):
    """Return the model and the losses of a run without dropout."""
    run, front, _ = start(None, dropout=0.0, **how)
    with run:
        loader = run.loader(toy_data(93), batch_size=BATCH)
        losses = [run.step(batch, loss_of(front)) for batch in run.steps(loader, epochs=20, max_steps=STEPS)]
    return front, losses


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("islands", [4, 2, 1])
def test_it_is_diloco_in_plain_torch(islands, clip):
    """Bit for bit: a model and an optimizer for each island, torch's SGD with Nesterov momentum where they meet."""
    expected, losses = by_hand(STEPS, island_steps=3, islands=islands, clip=clip)
    front, got = played(kind="SGD", settings={"islands": islands}, clip_norm=clip)
    assert values_of(front) == values_of(expected)
    assert got == pytest.approx(losses, rel=1e-12)


def test_islands_that_swap_their_optimizers_are_noticed():
    """The control: other bits, as with another momentum or learning rate."""
    front, _ = played(kind="SGD")
    wrong = [{"swap": 4}, {"momentum": 0.0}, {"lr": 1.0}]
    found = [values_of(by_hand(STEPS, **{"island_steps": 3, "islands": 4, **how})[0]) for how in wrong]
    assert values_of(front) not in found and len({str(one) for one in found}) == 3


def test_meeting_after_every_step_is_plain_exact():
    """Up to rounding: one step, outer learning rate 1, no momentum, SGD and equal micro-batches."""
    fronts = []
    for how in ({"island_steps": None}, {"island_steps": 1, "settings": {"outer_lr": 1, "outer_momentum": 0}}):
        run, front, _ = start(None, dropout=0.0, kind="SGD", **how)
        with run:
            for batch in run.steps(run.loader(toy_data(96), batch_size=BATCH), epochs=20, max_steps=STEPS):
                run.step(batch, loss_of(front))
        fronts.append(front)
    for plain, islands in zip(*(front.state_dict().values() for front in fronts), strict=True):
        torch.testing.assert_close(plain, islands, rtol=1e-4, atol=1e-5)
    assert values_of(fronts[0]) != values_of(fronts[1])


@pytest.mark.parametrize(("name", "world_size"), [*((name, 2) for name in CASES), ("plain", 4), ("clip", 3)])
def test_the_same_bits_on_any_number_of_ranks(name, world_size):
    """Weights, every island's state, losses and ledger; buffers, dropout and a short last batch with them."""
    expected = alone()[list(CASES).index(name)]
    reports = run_threads(islands_programs.legs, world_size, [{"steps": STEPS, **CASES[name]}])
    assert all(same(report[0], expected) for report in reports)
    assert reports[0][0]["ledger"] == expected["ledger"] and expected["ledger"].count("\n") == STEPS
    assert len({report["fingerprint"] for report in alone()}) == len(CASES)  # the control


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "transport"), [(2, "gloo"), (4, "auto")])
def test_the_same_bits_on_processes(world_size, transport):
    """Over shared memory and over sockets."""
    names = [name for name in CASES if name != "pairs" or world_size == 2]
    cases = [{"steps": STEPS, **CASES[name], "over": transport} for name in names]
    reports = run_forked(islands_programs.legs, world_size, cases)
    for name, *found in zip(names, *reports, strict=True):
        expected = alone()[list(CASES).index(name)]
        assert all(same(report, expected) for report in found)
        assert found[0]["ledger"] == expected["ledger"]


def test_a_run_goes_on_in_the_middle_of_a_round(tmp_path):
    """Two ranks, then one, then four, each from a checkpoint within a round: the undisturbed run's bits and state."""
    out = str(tmp_path / "run")
    for world_size, steps in ((2, 4), (1, 7), (4, STEPS)):
        reports = run_threads(leg, world_size, steps, out)
    assert all(report["fingerprint"] == alone()[0]["fingerprint"] for report in reports)
    assert all(report["state"] == alone()[0]["state"] for report in reports)
    assert (tmp_path / "run" / "ledger.jsonl").read_text() == alone()[0]["ledger"]
    assert [len(report["losses"]) for report in reports] == [1] * 4


@pytest.mark.parametrize("what", some_are_slow(["velocity", "optimizer", "weights", "buffers", "mixed"], 2))
def test_what_is_lost_at_a_resume_is_noticed(tmp_path, monkeypatch, what):
    """The control: without momentum, moments, weights or buffers of the islands, or with another's: other bits."""
    out = str(tmp_path / "run")
    leg(None, 4, out=out)
    whole = Islands.unpack

    def losing(self, state, scheduler, objects):
        if what == "mixed":
            changed = {name: state.tensors["islands"].get(_of_another(name)) for name in state.tensors["islands"]}
        else:
            changed = {
                name: torch.zeros_like(value) if what in name.split("/")[:2] else value
                for name, value in state.tensors["islands"].items()
            }
        state.tensors["islands"].update(changed)
        whole(self, state, scheduler, objects)

    monkeypatch.setattr(Islands, "unpack", losing)
    assert leg(None, STEPS, out=out)["fingerprint"] != alone()[0]["fingerprint"]


def _of_another(name):
    """Return the name of another island's optimizer state."""
    return {"0": "1", "1": "0"}[name[0]] + name[1:] if name.startswith(("0/optimizer", "1/optimizer")) else name


@pytest.mark.slow
def test_a_rank_that_dies_in_a_round(tmp_path):
    """The run goes on from its checkpoint, on another number of workers, to the undisturbed run's bits."""
    out = str(tmp_path / "run")
    with pytest.raises(WorkerFailed, match="rank 1"):
        run_processes(islands_programs.dies, 2, out, 6)
    reports = run_threads(leg, 4, STEPS, out)
    assert all(len(report["losses"]) == STEPS - 4 and report["state"] == alone()[0]["state"] for report in reports)
    assert (tmp_path / "run" / "ledger.jsonl").read_text() == alone()[0]["ledger"]


def test_between_meetings_only_the_report_is_sent():
    """Every third step sends the model's sum once, as plain exact does in each step; the others some bytes."""
    islands, plain = (
        run_threads(islands_programs.leg, 2, 6, None, steps)[0]["sent"] for steps in (3, None)
    )  # fmt: skip
    model = sum(tensor.numel() * 4 for tensor in islands_programs.model_of().parameters())
    assert [sent < 150 for sent in islands] == [True, True, False] * 2
    assert all(sent == pytest.approx(plain[2], abs=300) and sent > model for sent in islands[2::3])


def test_the_program_sees_the_common_weights():
    """Between steps and in evaluation the model holds what the islands last agreed on; the optimizer has no state."""
    run, front, optimizer = start(None, dropout=0.0)
    metrics = {"accuracy": unisono.Accuracy()}
    seen, told = [values_of(front)], []
    with run:
        for batch in run.steps(run.loader(toy_data(93), batch_size=BATCH), epochs=20, max_steps=7):
            run.step(batch, loss_of(front))
            seen.append(values_of(front))
            front.eval()
            told.append(run.evaluate(toy_data(50), lambda micro: (front(micro.x), micro.y), metrics))
            front.train()
            assert not optimizer.state and all(parameter.grad is None for parameter in front.parameters())
    assert seen[0] == seen[1] == seen[2] != seen[3] == seen[4] == seen[5] != seen[6] == seen[7]
    assert told[2] == told[3] == told[4]
    result = run.result()
    assert (result["islands"], result["island_rounds"], result["steps_since_round"]) == (4, 2, 1)


def test_a_run_that_ends_in_a_round_says_so():
    """What the last steps have learned is not in the model; at the end of a round nothing is said."""
    for steps, said in ((4, "ends 1 step after its islands have met the last time"), (2, "2 steps .* at the start")):
        with pytest.warns(UserWarning, match=f"{said}.*a multiple of 3"):
            leg(None, steps)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        leg(None, 3)


def test_weights_changed_in_a_round_are_refused():
    """Where a round begins a program may change them, and the islands begin there; in a round they would not see it."""
    run, front, _ = start(None)
    with run, pytest.raises(StepError, match="weights or buffers were changed between steps, 1 of 3 steps after"):
        for batch in run.steps(run.loader(toy_data(93), batch_size=BATCH), epochs=20, max_steps=8):
            run.step(batch, loss_of(front))
            if batch.step in (3, 4):
                with torch.no_grad():
                    front[0].weight.mul_(0.5)
    assert batch.step == 5


def test_an_optimizer_state_that_is_put_between_steps_is_refused():
    """Islands hold theirs, so it would be lost; before `prepare` it is each island's first (see the cases)."""
    run, front, optimizer = start(None)
    other = torch.optim.AdamW(front.parameters())
    front(toy_data(8)[0][0][None].expand(8, -1)).sum().backward()
    other.step()
    other.zero_grad()
    with run, pytest.raises(StepError, match="step 4: the optimizer was given a state between steps"):
        for batch in run.steps(run.loader(toy_data(93), batch_size=BATCH), epochs=20, max_steps=8):
            run.step(batch, loss_of(front))
            if batch.step == 3:
                optimizer.load_state_dict({**optimizer.state_dict(), "state": other.state_dict()["state"]})


def _froze(transport, steps=7):
    """Train with a layer that is thawed within a round, and one that is frozen there; return the weights."""
    run, front, _ = start(transport, dropout=0.0)
    front[0].requires_grad_(False)
    first = values_of(front[0])
    with run:
        for batch in run.steps(run.loader(toy_data(93), batch_size=BATCH), epochs=20, max_steps=steps):
            run.step(batch, loss_of(front))
            if batch.step == 4:
                assert values_of(front[0]) == first
                front[0].requires_grad_(True)
                front[4].requires_grad_(False)
    return [value.hex() for value in values_of(front)], values_of(front[0]) != first


def test_layers_may_be_frozen_and_thawed_within_a_round():
    """The same bits on any number of ranks; what was frozen keeps its bits until then."""
    expected, is_moved = run_threads(_froze, 1)[0]
    assert is_moved
    assert all(report == [expected, True] for report in run_threads(_froze, 2))


def test_a_skipped_step_counts_for_no_round():
    """NaN on one island: no island is updated, and the meeting comes one step later."""
    run, front, _ = start(None, dropout=0.0, non_finite="skip")
    seen = [values_of(front)]
    with run:
        for batch in run.steps(run.loader(toy_data(96), batch_size=BATCH), epochs=20, max_steps=4):
            factor = torch.nan if batch.step == 2 else 1.0
            run.step(batch, lambda micro, factor=factor: F.cross_entropy(front(micro.x), micro.y) * factor)
            seen.append(values_of(front))
    assert seen[0] == seen[3] != seen[4]


def test_what_islands_cannot_do_is_refused_by_name():
    """Parameters that overlap in memory, and a monitor of the whole batch's gradient."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight.data = net[0].weight.data
    strategy = unisono.strategy("exact", island_steps=2)
    same_memory = "'0.weight' and '1.weight' lie in the same memory"
    with unisono.Run(replicas=2, strategy=strategy) as run, pytest.raises(ConfigError, match=same_memory):
        run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    whole_gradient = r"strategy exact does not leave there.*without island_steps"
    with unisono.Run(replicas=2, strategy=strategy) as run, pytest.raises(ConfigError, match=whole_gradient):
        net = nn.Linear(64, 10)
        unisono.Trainer(run, net, torch.optim.SGD(net.parameters(), lr=0.1), loss=nn.CrossEntropyLoss(),
                        callbacks=[unisono.callbacks.GradientMonitor()])  # fmt: skip
