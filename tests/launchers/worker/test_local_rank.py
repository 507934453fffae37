"""Scripts for torch.distributed.launch."""

import pytest

from unisono.launchers.worker.local_rank import local_rank_flag, with_local_rank


@pytest.mark.parametrize(
    ("source", "flag"),
    [
        ('parser.add_argument("--local_rank", type=int)', "--local_rank"),
        ("parser.add_argument('--local-rank', type=int)", "--local-rank"),
        ('p.add_argument("--local-rank", "--local_rank")', "--local-rank"),
        ('p.add_argument("-r", "--local_rank")\np.add_argument("--local-rank")', "--local_rank"),
        ('@click.option("--local_rank", type=int)\ndef main(local_rank): ...', "--local_rank"),
        ('# parser.add_argument("--local_rank")', None),
        ('print("--local_rank")', None),
        ('rank = os.environ["LOCAL_RANK"]', None),
        ('parser.add_argument("--local_rank"', None),
    ],
)
def test_flag(source, flag):
    """Only a declared option counts, in its own spelling, the first one first; broken text declares none."""
    assert local_rank_flag(source.encode()) == flag


def test_arguments():
    """The rank comes before the user's arguments, unless they give one in any spelling or form."""
    source = b'parser.add_argument("--local_rank")'
    assert with_local_rank(source, ["--lr", "1"], 3) == ["--local_rank=3", "--lr", "1"]
    for given in (["--local_rank", "0"], ["--local_rank=0"], ["--local-rank=0"]):
        assert with_local_rank(source, given, 3) == given
    assert with_local_rank(b"", ["a"], 3) == ["a"]


@pytest.mark.parametrize("flag", ["--local_rank", "--local-rank"])
def test_script(place, flag):
    """A script with the option gets each worker's local rank."""
    result = place.run(
        f"""
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("{flag}", type=int, default=-1)
        parser.add_argument("--lr", type=float)
        print(parser.parse_args())
        """,
        "-n2",
        args=("--lr", "0.5"),
    )
    assert sorted(result.stdout.splitlines()) == [
        "[rank 0] Namespace(local_rank=0, lr=0.5)",
        "[rank 1] Namespace(local_rank=1, lr=0.5)",
    ]
