"""Cases about the order of the data: every sample once, any step at any time, the same whoever asks."""

import random

import numpy as np
from torch.utils import data

import unisono
from adversary.found import check


def sampler(chance: random.Random, *, cheat: bool = False) -> str:
    """An epoch has each sample once, cut in order for replicas; any step is the same asked alone or in turn."""
    num_samples, batch_size = chance.randint(1, 400), chance.randint(1, 90)
    replicas, seed, shuffle = chance.randint(1, 12), chance.randrange(2**40), chance.random() < 0.8
    more = {}
    if chance.random() < 0.4:
        lengths = np.array([chance.randint(1, 50) for _ in range(num_samples)], dtype=np.int64)
        more = {"lengths": lengths, "length_pool": chance.choice([0, 1, 2, 5])}
    make = lambda: unisono.ExactSampler(num_samples, batch_size, replicas, seed=seed, shuffle=shuffle, **more)  # noqa: E731
    it, fresh = make(), make()
    per_epoch = -(-num_samples // batch_size)
    check(it.steps_per_epoch == per_epoch, "a wrong number of steps")
    orders = []
    for epoch in range(2):
        steps = range(epoch * per_epoch + 1, (epoch + 1) * per_epoch + 1)
        batches = {step: it.batch(step).tolist() for step in steps}
        if cheat:
            batches[steps[0]][0] = batches[steps[-1]][-1] + (num_samples == 1)
        asked = list(steps)
        chance.shuffle(asked)
        for step in asked:
            check(cheat or fresh.batch(step).tolist() == batches[step], f"step {step} alone is another batch")
            micros = fresh.micro_batches(step)
            check(len(micros) == replicas, "another number of micro-batches")
            check(cheat or [i for micro in micros for i in micro.tolist()] == batches[step], "micro-batches are no cut")
            sizes = [len(micro) for micro in micros]
            check(max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True), f"uneven: {sizes}")
        order = [index for step in steps for index in batches[step]]
        check(sorted(order) == list(range(num_samples)), f"epoch {epoch} has not each of {num_samples} samples once")
        orders.append(order)
    if shuffle and num_samples > 12 and batch_size < num_samples:
        check(orders[0] != orders[1], "both epochs have one order")
    return f"{num_samples} samples, batches of {batch_size}, V={replicas}"


def distributed_sampler(chance: random.Random, *, cheat: bool = False) -> str:
    """The drop-in gives each rank as many samples as torch's, resumes anywhere, and with exact_once loses nothing."""
    num_samples, ranks = chance.randint(1, 200), chance.randint(1, 7)
    seed, drop_last, exact = chance.randrange(2**31), chance.random() < 0.3, chance.random() < 0.5
    more = {"exact_once": True} if exact else {"drop_last": drop_last}
    epoch = chance.randint(0, 4)
    parts = []
    for rank in range(ranks):
        ours = unisono.DistributedSampler(range(num_samples), ranks, rank, seed=seed, **more)
        for _ in range(epoch):
            list(ours)  # the epoch moves on by itself
        whole = list(ours)
        again = unisono.DistributedSampler(range(num_samples), ranks, rank, seed=seed, **more)
        again.set_epoch(epoch)
        stop = chance.randint(0, max(0, len(whole) - 1))
        running = iter(again)
        begun = [next(running) for _ in range(stop)]
        resumed = unisono.DistributedSampler(range(num_samples), ranks, rank, seed=seed, **more)
        resumed.load_state_dict(again.state_dict())
        check(begun + list(resumed) == (whole[1:] if cheat else whole), f"resumed at {stop}: other samples")
        if not exact:
            theirs = data.DistributedSampler(range(num_samples), ranks, rank, seed=seed, drop_last=drop_last)
            check(len(ours) == len(whole) == len(list(theirs)), "another number of samples than torch's")
        parts.append(whole)
    seen = [sample for part in parts for sample in part]
    if exact:
        check(sorted(seen) == list(range(num_samples)), "not each sample once")
    elif not drop_last:
        check(set(seen) == set(range(num_samples)), "a sample is missing")
    return f"{num_samples} samples on {ranks} ranks, {more}"
