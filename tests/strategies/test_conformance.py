"""What every strategy must do; see `conformance` for the programs."""

import re
import time

import pytest

import jobs
from cases import some_are_slow
from forks import run_forked
from ranks import once, run_processes, run_threads
from strategies import conformance
from unisono.errors import WorkerFailed
from unisono.strategies.catalog import CATALOG, find

CASES = list(conformance.CASES)
PROGRAMS = list(conformance.PROGRAMS)
THREADS: dict[str, tuple[int, ...]] = {
    "exact": (2,), "islands": (1, 2), "ddp": (1,), "allreduce": (1, 2), "allreduce-tree": (3,), "local-sgd": (2,),
    "ps": (3,), "ps-2": (4,), "dp": (1,), "balanced_dp": (1,), "fsdp": (1,),
    "model_parallel": (1, 2), "pipeline": (1, 4), "pipeline-gpipe": (3,), "pipeline-interleaved": (2,),
}  # fmt: skip
"""World sizes in threads; a strategy that needs processes has one rank here, or none."""
ALONE = ("dp", "balanced_dp")
PROCESSES = {
    2: [case for case in CASES if case not in (*ALONE, "ps-2", "pipeline-gpipe")],
    3: [case for case in CASES if case not in (*ALONE, "pipeline", "pipeline-interleaved")],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The digits, in a file that all ranks read."""
    return jobs.save_digits(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def launched(data):
    """Give every rank's claims from one launch of each world size."""
    return once(lambda world_size: run_forked(conformance.play_all, world_size, PROCESSES[world_size], data))


def check(reports):
    """Every claim is true on every rank."""
    for rank, report in enumerate(reports):
        assert [claim for claim, is_true in report.items() if not is_true] == [], f"rank {rank}"
        assert report


IN_ONE_PROCESS = [
    (case, world_size, program) for case, sizes in THREADS.items() for world_size in sizes for program in PROGRAMS
    if program != "learns" or world_size == max(sizes)
]  # fmt: skip
"""What learns is asked once: that other worlds compute the same, the other programs find."""


@pytest.mark.parametrize(("case", "world_size", "program"), some_are_slow(IN_ONE_PROCESS, 18))
def test_in_one_process(data, case, world_size, program):
    """Every strategy keeps these promises alone and on loopback ranks."""
    check(run_threads(conformance.PROGRAMS[program], world_size, case, data))


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("case", "world_size"), [(case, size) for size, cases in PROCESSES.items() for case in cases])
def test_in_processes(launched, case, program, world_size):
    """Every strategy keeps them on processes."""
    check([report[f"{case} {program}"] for report in launched(world_size)])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["ddp", "allreduce", "ps", "pipeline"])
def test_a_killed_rank_ends_the_run_with_a_clear_error(data, tmp_path, case):
    """The launcher names the rank that was killed; nobody waits for it."""
    started = time.monotonic()
    with pytest.raises(WorkerFailed, match="rank 1") as failure:
        run_processes(conformance.loses_a_rank, 2, case, data, 1, str(tmp_path))
    assert failure.value.exit_code == 137
    assert time.monotonic() - started < 60


def test_every_strategy_of_the_catalog_conforms():
    """A new strategy comes with its cases; each has one line in the catalog."""
    assert {name for name, _ in conformance.CASES.values()} == set(CATALOG)
    assert all(re.fullmatch(r"[^\n.]{20,90}", kind.summary) for kind in CATALOG.values())
    assert all(find(name).name == name for name in CATALOG)
