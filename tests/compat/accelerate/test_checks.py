"""The checks that accelerate's own test scripts make (test_script, test_sync, test_metrics), with our import."""

import logging

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

from ranks import run_threads
from unisono.compat.accelerate import Accelerator, DataLoaderConfiguration, DistributedType, set_seed
from unisono.compat.accelerate.logging import get_logger
from unisono.data.sampler import ExactSampler
from unisono.errors import ConfigError

V = 3
RANKS = (1, 2, 3)


def on(ranks, program, **settings):
    """Return what a program returns on each rank, given an accelerator."""
    return run_threads(lambda transport: program(Accelerator(replicas=V, transport=transport, **settings)), ranks)


@pytest.mark.parametrize("ranks", RANKS)
def test_init_state(ranks):
    """init_state_check: V processes on any number of ranks; one rank is the main one, another the last."""
    told = on(ranks, lambda a: [a.num_processes, a.process_index, a.is_main_process, a.is_last_process, str(a.state)])
    assert [state[:2] for state in told] == [[V, rank] for rank in range(ranks)]
    assert [state[2] for state in told] == [rank == 0 for rank in range(ranks)]
    assert [state[3] for state in told] == [rank == ranks - 1 for rank in range(ranks)]
    assert f"Num processes: {V}" in told[0][4]
    assert Accelerator(replicas=1).distributed_type == DistributedType.NO
    assert Accelerator(replicas=2).distributed_type == DistributedType.MULTI_CPU


@pytest.mark.parametrize("ranks", RANKS)
def test_process_execution(ranks, tmp_path, capsys):
    """process_execution_check: the main process writes first; decorated functions run where they should."""

    def program(accelerator):
        path = tmp_path / f"{ranks}.txt"
        with accelerator.main_process_first():
            if accelerator.is_main_process:
                path.write_text("main\n")
            first = path.read_text().startswith("main")
        with accelerator.local_main_process_first():
            pass
        where = [
            accelerator.on_main_process(lambda: 1)(),
            accelerator.on_local_main_process(lambda: 1)(),
            accelerator.on_last_process(lambda: 1)(),
            accelerator.on_process(lambda: 1, process_index=0)(),
            accelerator.on_process(process_index=ranks - 1)(lambda: 1)(),
        ]
        accelerator.print("said once")
        return [first, where]

    for rank, (first, where) in enumerate(on(ranks, program)):
        main, last = (1 if rank == 0 else None), (1 if rank == ranks - 1 else None)
        assert first
        assert where == [main, main, last, main, last]
    assert capsys.readouterr().out == "said once\n"


class Counted(Dataset):
    """The numbers 0 to n - 1."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("samples", [48, 50, 3])
def test_loaders(ranks, split, samples):
    """dl_preparation_check: an evaluation sees all of the data once, on all ranks together, in order or shuffled."""
    config = DataLoaderConfiguration(split_batches=split)

    def program(accelerator):
        seen = []
        for shuffle in (False, True):
            loader = DataLoader(Counted(samples), batch_size=4 * (V if split else 1), shuffle=shuffle)
            loader = accelerator.prepare(loader)
            assert len(loader) == -(-samples // (4 * V))
            seen.append(torch.cat([accelerator.gather_for_metrics(batch) for batch in loader]).tolist())
        return seen

    for plain, shuffled in on(ranks, program, dataloader_config=config):
        assert plain == list(range(samples))
        assert shuffled == ExactSampler(samples, samples, seed=0).batch(1).tolist()


class Regression(nn.Module):
    """accelerate's model of two numbers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(0.0)), nn.Parameter(torch.tensor(0.0))

    def forward(self, x):
        """Return a straight line."""
        return x * self.a + self.b


class Line(Dataset):
    """accelerate's data: y = 2 x + 3 and noise."""

    def __init__(self, length):
        generator = torch.Generator().manual_seed(42)
        self.x = torch.randn(length, generator=generator)
        self.y = 2 * self.x + 3 + 0.1 * torch.randn(length, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.y[index]}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("split", [False, True])
def test_training(ranks, split):
    """training_check: the same model as on one process, with and without split batches."""
    train_set, batch_size = Line(8 * 4 * V), 8 * V

    def program(accelerator):
        loader = DataLoader(train_set, batch_size=batch_size if split else 8, shuffle=True)
        model = Regression()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader, model, optimizer = accelerator.prepare(loader, model, optimizer)
        for _ in range(3):
            for batch in loader:
                model.zero_grad()
                loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
                accelerator.backward(loss)
                optimizer.step()
        model = accelerator.unwrap_model(model)
        return [model.a.item(), model.b.item()]

    old, sampler = Regression(), ExactSampler(len(train_set), batch_size, seed=0)
    optimizer = torch.optim.SGD(old.parameters(), lr=0.1)
    for step in range(1, 13):
        batch = torch.from_numpy(sampler.batch(step))
        optimizer.zero_grad()
        nn.functional.mse_loss(old(train_set.x[batch]), train_set.y[batch]).backward()
        optimizer.step()
    for found in on(ranks, program, dataloader_config=DataLoaderConfiguration(split_batches=split)):
        assert found == pytest.approx([old.a.item(), old.b.item()], rel=1e-5)


def test_seeds():
    """check_seedable_sampler: one seed one order, whatever has been drawn before; another seed another one."""

    def order(seed):
        set_seed(seed)
        torch.rand(3)
        loader = Accelerator().prepare(DataLoader(Counted(20), batch_size=20, shuffle=True))
        return next(iter(loader)).tolist()

    assert order(42) == order(42) != order(43)
    with pytest.raises(ConfigError, match="device_specific"):
        set_seed(1, device_specific=True)
    set_seed(0)


@pytest.mark.parametrize("ranks", RANKS)
def test_split_between_processes(ranks):
    """test_split_between_processes_*: lists, dictionaries, tensors, padded; the parts are all of it."""

    def program(accelerator):
        gathered = []
        for items in (list(range(2 * ranks)), list(range(2 * ranks - 1))):
            with accelerator.split_between_processes(items, apply_padding=True) as part:
                assert len(part) == -(-len(items) // ranks)
                gathered.append(accelerator.gather_for_metrics(part)[: len(items)] == items)
        with accelerator.split_between_processes({"a": list("abcdef"), "b": torch.arange(12).view(6, 2)}) as part:
            gathered.append(accelerator.gather(part["b"]).tolist() == torch.arange(12).view(6, 2).tolist())
            gathered.append(len(part["a"]) == 6 // ranks)
        with accelerator.split_between_processes(torch.arange(1), apply_padding=True) as part:
            gathered.append(part.tolist() == [0])
        return all(gathered)

    assert all(on(ranks, program))


@pytest.mark.parametrize("ranks", RANKS)
def test_trigger(ranks):
    """test_trigger: one rank's trigger is seen by all, once."""

    def program(accelerator):
        before = accelerator.check_trigger()
        if accelerator.is_last_process:
            accelerator.set_trigger()
        return [before, accelerator.check_trigger(), accelerator.check_trigger()]

    assert on(ranks, program) == [[False, True, False]] * ranks


@pytest.mark.parametrize("ranks", RANKS)
def test_metrics(ranks):
    """test_metrics: tensors, dictionaries and texts of each sample are there once, where the last round is uneven."""

    def program(accelerator):
        loader = accelerator.prepare(DataLoader(Counted(4 * V * 2 + 5), batch_size=4))
        rows, texts = [], []
        for batch in loader:
            found = accelerator.gather_for_metrics({"x": batch, "pair": (batch * 2, [batch.float()])})
            assert torch.equal(found["pair"][0], found["x"] * 2)
            rows += found["x"].tolist()
            texts += accelerator.gather_for_metrics([f"sample {number}" for number in batch.tolist()])
        return [rows, texts]

    samples = 4 * V * 2 + 5
    for rows, texts in on(ranks, program):
        assert rows == list(range(samples))
        assert texts == [f"sample {number}" for number in range(samples)]


@pytest.mark.parametrize("ranks", RANKS)
def test_collectives(ranks):
    """test_ops: gather, reduce, and padding to one shape; on the other side of a pad, or of nothing."""

    def program(accelerator):
        rank = accelerator.process_index
        own = torch.full((rank + 1, 2), float(rank))
        return [
            accelerator.gather(torch.tensor(rank)).tolist(),
            accelerator.gather({"rows": own})["rows"].shape,
            accelerator.reduce(torch.tensor([1.0, rank]), "sum").tolist(),
            accelerator.reduce(torch.tensor([1.0, rank]), "mean", scale=2.0).tolist(),
            accelerator.pad_across_processes(own, pad_index=-1, pad_first=True)[0].tolist(),
        ]

    total = sum(range(ranks))
    for rank, told in enumerate(on(ranks, program)):
        first = [float(rank)] * 2 if rank == ranks - 1 else [-1.0, -1.0]
        assert told == [
            list(range(ranks)), [sum(range(1, ranks + 1)), 2], [float(ranks), float(total)],
            [2.0, 2.0 * total / ranks], first,
        ]  # fmt: skip


@pytest.mark.parametrize("ranks", RANKS)
def test_accumulation(ranks):
    """test_sync: with g batches of each of V processes, an update falls after all of them, and at an epoch's end."""

    def program(accelerator):
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        train = DataLoader(Counted(2 * V * 5), batch_size=2)
        model, optimizer, train, schedule = accelerator.prepare(model, optimizer, train, schedule)
        turns, synced, rates = 0, 0, []
        for batch in train:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch.float().view(-1, 1)).square().mean())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            turns, synced = turns + 1, synced + accelerator.sync_gradients
            if accelerator.sync_gradients:
                rates.append(schedule.get_last_lr()[0])
        return [len(train), turns, synced, accelerator.completed_steps, rates]

    told = on(ranks, program, gradient_accumulation_steps=2)
    assert sum(turns for _, turns, *_ in told) == 2 * V * 3  # leaves of three steps, the last of fewer samples
    for length, _, synced, done, rates in told:
        assert (length, synced, done) == (5, 3, 3)
        assert rates == pytest.approx([0.1 * 0.9 ** (V * step) for step in (1, 2, 3)])


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(5))


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (lambda: DataLoader(Endless(), batch_size=2), "unisono.Stream"),
        (lambda: DataLoader(Counted(8), batch_size=None), "no batch size"),
        (lambda: DataLoader(Counted(8), sampler=[3, 1, 2]), "Subset"),
        (lambda: DataLoader(Counted(8), batch_sampler=[[3, 1], [2, 0]]), "a list"),
        (lambda: DataLoader(Counted(8), sampler=RandomSampler(Counted(8), num_samples=4)), "each once"),
        (lambda: DataLoader(Counted(8), batch_sampler=Own(Counted(8))), "a Own"),
    ],
)
def test_loaders_that_are_refused(loader, words):
    """custom_sampler_check: an order that no step's number tells is refused, with what to do instead."""
    with pytest.raises(ConfigError, match=words):
        Accelerator().prepare(loader())


class Own(BatchSampler):
    def __init__(self, data):
        super().__init__(RandomSampler(data), 2, drop_last=False)


def test_weighted_samples():
    """A WeightedRandomSampler draws by its weights, keyed by the step."""
    weights = WeightedRandomSampler([0.0, 1.0, 0.0, 1.0], 12)
    accelerator = Accelerator(replicas=2)
    model = nn.Linear(1, 1)
    model, optimizer, train = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(Counted(4), batch_size=2, sampler=weights)
    )
    seen = []
    for batch in train:
        seen += batch.tolist()
        accelerator.backward(model(batch.float().view(-1, 1)).square().mean())
        optimizer.step()
    assert len(seen) == 12
    assert set(seen) == {1, 3}


def test_one_cycle_ends_where_accelerate_ends_it():
    """A schedule with an end takes V steps for an update up to it, then none; turns of accumulation count for it."""
    for accumulation, expected in ((1, 10), (2, 7)):
        accelerator = Accelerator(replicas=V, gradient_accumulation_steps=accumulation)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
        train = DataLoader(Counted(2 * V * accumulation * 5), batch_size=2)
        model, optimizer, train, schedule = accelerator.prepare(model, optimizer, train, schedule)
        for batch in train:
            accelerator.backward(model(batch.float().view(-1, 1)).square().mean())
            optimizer.step()
            schedule.step()
        assert schedule.last_epoch == reference_end(5, accumulation) == expected


def reference_end(updates, accumulation, total=10):
    """Return the last epoch of the schedule by accelerate's rules, written down from its description."""
    count, last = 1, 0
    for _ in range(updates):
        count += accumulation - 1
        for _ in range(V):
            if count <= total:
                count, last = count + 1, last + 1
    return last


def test_logging_and_trackers(tmp_path, caplog):
    """The logger speaks on the main rank, or on all; TensorBoard and an own tracker get what is logged."""

    class Own:
        name = "own"

        def __init__(self):
            self.told = []

        def store_init_configuration(self, values):
            self.told.append(dict(values))

        def log(self, values, step=None):
            self.told.append((dict(values), step))

        def finish(self):
            self.told.append("finished")

    def program(transport):
        own = Own()
        accelerator = Accelerator(transport=transport, replicas=2, log_with=["tensorboard", own], project_dir=tmp_path)
        accelerator.init_trackers("mine", config={"lr": 0.1})
        accelerator.log({"loss": 1.0}, step=3)
        if accelerator.is_main_process:
            assert accelerator.get_tracker("own") is own
            with pytest.raises(ConfigError, match="own"):
                accelerator.get_tracker("other")
        logger = get_logger("unisono.tests", log_level="info")
        logger.info("once %s", "here")
        logger.info("twice", main_process_only=False, in_order=True)
        accelerator.end_training()
        return own.told

    with caplog.at_level(logging.INFO):
        told = run_threads(program, 2)
    assert told == [[{"lr": 0.1}, [{"loss": 1.0}, 3], "finished"], []]
    assert sorted(record.message for record in caplog.records) == ["once here", "twice", "twice"]
    assert list((tmp_path / "mine").glob("events.*"))


def test_saving(tmp_path):
    """save_model writes weights that torch's own model takes; registered objects go with a state."""

    class Counter:
        def __init__(self):
            self.count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    def make():
        accelerator, counter = Accelerator(replicas=2), Counter()
        model = nn.Linear(1, 1)
        prepared = accelerator.prepare(
            model, torch.optim.Adam(model.parameters(), lr=0.1), DataLoader(Counted(8), batch_size=2)
        )
        accelerator.register_for_checkpointing(counter)
        return accelerator, counter, *prepared

    accelerator, counter, model, optimizer, train = make()
    for batch in train:
        accelerator.backward(model(batch.float().view(-1, 1)).square().mean())
        optimizer.step()
        counter.count += accelerator.sync_gradients
    accelerator.save_state(tmp_path / "state")
    accelerator.save_model(model, tmp_path / "model")
    accelerator.save({"a": 1}, tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt") == {"a": 1}
    from safetensors.torch import load_file

    assert torch.equal(load_file(tmp_path / "model" / "model.safetensors")["weight"], model.weight)
    with pytest.raises(ConfigError, match="with a folder"):
        accelerator.save_state()
    again, other, fresh, adam, _ = make()
    again.load_state(tmp_path / "state")
    assert other.count == counter.count == 2
    assert torch.equal(fresh.weight, model.weight)
    assert torch.equal(adam.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])
    assert again.free_memory(fresh, adam) == [None, None]
