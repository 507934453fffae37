"""Cases about bits: any training on any number of ranks, stopped and resumed anywhere, is the same training."""

import random
import tempfile
from pathlib import Path

from adversary.found import check
from adversary.trainings import draw, num_steps, on_ranks

SCALABLE = {"replicas": 4, "batch_size": 16, "num_samples": 40, "optimizer": "sgd", "clip": {}, "model": "mlp"}


def combination(chance: random.Random, *, cheat: bool = False) -> str:
    """Any training on any number of ranks has the bits of one rank."""
    description = draw(chance)
    if cheat:  # a rank that scales its loss must have something to scale
        description |= SCALABLE
    world_size = chance.randint(2, 5) if description["replicas"] > 1 else 1
    world_size = min(world_size, description["replicas"])
    with tempfile.TemporaryDirectory() as folder:
        alone = on_ranks(description, 1, out=f"{folder}/1")[0]
        several = on_ranks(description, world_size, out=f"{folder}/several", cheat=cheat)
    check(len(several) == world_size, f"{len(several)} reports of {world_size} ranks")
    check(alone["losses"], "no step was done")
    for rank, report in enumerate(several):
        for part in ("fingerprint", "losses", "optimizer"):
            check(report[part] == alone[part], f"rank {rank} of {world_size}: another {part}: {description}")
    check(several[0]["ledger"] == alone["ledger"], f"another ledger on {world_size} ranks: {description}")
    return f"{description['model']} {description['optimizer']} V={description['replicas']} on {world_size}"


def interruption(chance: random.Random, *, cheat: bool = False) -> str:
    """Stopped at drawn steps, by a break or an error, and resumed on other numbers of ranks: as if never stopped."""
    description = draw(chance) | {"epochs": 3}
    if cheat:
        description |= SCALABLE
    total = num_steps(description)
    every = chance.choice([None, 1, 2, 3, 5])
    with tempfile.TemporaryDirectory() as folder:
        whole = on_ranks(description, 1, out=f"{folder}/whole", checkpoint_every=every)[0]
        legs = sorted(chance.sample(range(1, total), min(total - 1, chance.randint(1, 3))))
        for stop_after in [*legs, None]:
            world_size = chance.randint(1, min(4, description["replicas"]))
            how = chance.choice(["break", "error"])
            legged = on_ranks(
                description, world_size, out=f"{folder}/legs", stop_after=stop_after, how=how, checkpoint_every=every,
                cheat=cheat and stop_after is None and world_size > 1,
            )  # fmt: skip
        if cheat and world_size == 1:  # the control needs a rank that lies
            on_ranks(description | {"seed": description["seed"] + 1}, 1, out=f"{folder}/other")
            legged = on_ranks(description | {"seed": description["seed"] + 1}, 1)
        ledger = Path(folder, "legs", "ledger.jsonl").read_text()
    for rank, report in enumerate(legged):
        for part in ("fingerprint", "optimizer"):
            check(report[part] == whole[part], f"rank {rank}: another {part} after stops at {legs}: {description}")
    check(ledger == whole["ledger"], f"another ledger after stops at {legs}: {description}")
    return f"{description['model']} {description['optimizer']} stopped at {legs}"
