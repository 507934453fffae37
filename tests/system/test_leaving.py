"""Programs that end without destroying their process group."""

import pytest

BODY = """
    import atexit, os, sys
    import torch, torch.distributed as dist
    from unisono.system import leaving

    if os.environ["RANK"] in {stays!r}:
        atexit.unregister(leaving._leave_groups)
    dist.init_process_group("gloo")
    total = torch.ones(1000)
    for _ in range(20):
        dist.all_reduce(total)
"""


def test_gloo_groups_are_destroyed_at_exit(place):
    """A script that forgets its group leaves none; one rank, the control, is let keep it."""
    watch = """
        # Registered before what the worker registers is run: handlers run last first.
        rank = os.environ["RANK"]
        show = lambda: (sys.stdout.write(f"kept {dist.is_initialized()}\\n"), sys.stdout.flush())
        atexit.register(show)
        if rank == "0":
            atexit.unregister(leaving._leave_groups)
            atexit.register(leaving._leave_groups)
    """
    result = place.run(BODY.format(stays="1") + watch.replace("\n    ", "\n"), "-n2")
    assert sorted(result.stdout.splitlines()) == ["[rank 0] kept False", "[rank 1] kept True"]


@pytest.mark.slow
def test_no_abort_when_ranks_leave_others_at_work(place):
    """What ends most such programs by SIGABRT under torch alone, for the rank that leaves, ends well."""
    leave = """
    if dist.get_rank() == 3:
        sys.exit()
    try:
        while True:
            dist.all_reduce(total)
    except RuntimeError:
        print("lost")
    """
    for _ in range(2):
        result = place.run(BODY.format(stays="") + leave, "-n4")
        assert (result.returncode, result.stdout.count("lost")) == (0, 3), result.stderr
