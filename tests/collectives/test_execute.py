"""All-reduce as a function: a tensor, an operator and an algorithm by name, on the ranks that are there."""

import pytest
import torch

import unisono
from collectives import rank_programs
from forks import run_forked
from ranks import run_threads
from reference import bits, pairwise_sum, random_leaves
from unisono import collectives as face
from unisono.collectives import execute
from unisono.collectives.pieces import padded_length
from unisono.collectives.placement import cut
from unisono.collectives.schedules import plan, simulate, start
from unisono.data.sets.digits import load_digits

FUNCTIONS = {"sum": torch.add, "mean": torch.add, "min": torch.minimum, "max": torch.maximum, "product": torch.mul}


def simulated(values, algorithm, op):
    """Return what each rank ends with, computed in one process from the schedule alone."""
    schedule = plan(algorithm.replace("_", "-"), len(values))
    length = len(values[0])
    padded = [torch.cat([v, v.new_zeros(padded_length(length, len(values)) - length)]) for v in values]
    parts = cut(len(padded[0]), schedule.num_chunks)
    held = start(schedule, lambda rank, chunk: padded[rank][parts[chunk].start : parts[chunk].stop].clone())
    ends = [torch.cat([end[chunk] for chunk in sorted(end)]) for end in simulate(schedule, held, FUNCTIONS[op])]
    return [(end / len(values) if op == "mean" else end)[:length] for end in ends]


@pytest.mark.parametrize("algorithm", execute.ALGORITHMS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_algorithm_is_its_schedule(algorithm, size):
    """The bits of the schedule on every rank, for every operator; alike on all ranks, but not by the naive ring."""
    values = random_leaves(size, [1003], torch.float32, seed=size)

    def program(transport):
        found = {op: values[transport.rank].clone() for op in execute.OPERATORS}
        for op, tensor in found.items():
            assert face.all_reduce(tensor, op, algorithm, transport=transport) is tensor
        return {op: bits(tensor).hex() for op, tensor in found.items()}

    told = run_threads(program, size)
    for op in execute.OPERATORS:
        assert [rank[op] for rank in told] == [bits(end).hex() for end in simulated(values, algorithm, op)]
        is_alike = algorithm != "naive_ring" or size < 3 or op in ("min", "max")
        assert (len({rank[op] for rank in told}) == 1) == is_alike
    tree = bits(pairwise_sum(values, torch.add)).hex()
    in_order = algorithm in ("tree", "owner_computes", "halving_doubling") or size < 3
    assert (told[0]["sum"] == tree) == in_order


def test_any_dense_tensor():
    """Strided, empty, scalar, whole numbers, bfloat16, a parameter: in place, outside of autograd."""

    def program(transport):
        wide = torch.arange(12.0).view(3, 4).T
        cases = [wide[:, 1:], torch.zeros(0, 3), torch.tensor(2.0), torch.nn.Parameter(torch.ones(3))]
        cases += [torch.tensor([3, -4, 1]), torch.ones(5, dtype=torch.bfloat16)]
        expected = [case.detach().clone() * 3 for case in cases]
        for case, right in zip(cases, expected, strict=True):
            assert torch.equal(face.all_reduce(case, transport=transport), right)
        assert wide[:, 0].tolist() == [0, 1, 2, 3]  # beside the view nothing has changed
        assert face.all_reduce(torch.tensor([-4, 3]), op="mean", transport=transport).tolist() == [-4, 3]

    run_threads(program, 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"algorithm": "rings"}, "algorithm ring, tree, halving_doubling, owner_computes, naive_ring; got 'rings'"),
        ({"algorithm": "halving-doubling"}, "did you mean 'halving_doubling'?"),
        ({"op": "avg"}, "expected op sum, mean, min, max, product; got 'avg'"),
        ({"tensor": [1.0]}, "expected a dense tensor, got list"),
        ({"tensor": torch.ones(2, 2).to_sparse()}, "to_dense()"),
        ({"tensor": torch.ones(2, dtype=torch.complex64), "op": "min"}, "'min' is not defined for complex64"),
    ],
)
def test_what_it_cannot_do_is_one_clear_error(call, words):
    """In a world of one too, before anything is sent."""
    with pytest.raises(unisono.ConfigError) as error:
        face.all_reduce(**{"tensor": torch.ones(2), **call})
    assert words in str(error.value)


def test_ranks_that_differ_are_told():
    """Other shapes, or another algorithm, are refused on all ranks before anything is sent."""

    def program(transport):
        for call in ({"tensor": torch.ones(2 + transport.rank)}, {"algorithm": ("ring", "tree")[transport.rank]}):
            with pytest.raises(unisono.RankDivergence, match="all_reduce of "):
                face.all_reduce(**{"tensor": torch.ones(2), **call, "transport": transport})

    run_threads(program, 2)


def test_within_a_run():
    """It finds the run's ranks in the loop; inside a loss function it is refused; after the run it is alone again."""

    def program(transport):
        run = unisono.Run(replicas=2, transport=transport)
        model, _ = run.prepare(layer := torch.nn.Linear(64, 10), torch.optim.SGD(layer.parameters(), lr=0.1))
        data = unisono.ArrayDataset(load_digits().train_images[:8].reshape(8, 64), load_digits().train_labels[:8])
        for batch in run.steps(run.loader(data, batch_size=8), epochs=1):
            with pytest.raises(unisono.PlaceError, match="inside the loss function"):
                run.step(batch, lambda micro: face.all_reduce(model(micro.x).mean()))
            run._prepared().strategy.begin_again(is_within=True)
            break
        found = face.all_reduce(torch.tensor(run.world.rank + 1)).item()
        run.close()
        return found, face.all_reduce(torch.tensor(5)).item()

    assert run_threads(program, 2) == [[3, 5]] * 2


@pytest.mark.slow
def test_gradients_averaged_by_hand():
    """A tutorial's own loop, in processes without a run: the gradient of one big batch, on all ranks alike."""
    told = run_forked(rank_programs.average, 3)
    assert told[0] == told[1] == told[2]
    whole, _ = rank_programs.gradients(range(96))
    for algorithm in ("ring", "tree"):
        for found, expected in zip(told[0][algorithm], whole, strict=True):
            assert torch.allclose(torch.tensor(found), expected, atol=1e-6)
