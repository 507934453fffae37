"""The workers' output in files and chosen by rank; command lines pasted from torchrun's tutorials."""

import json
import re
import shlex
import signal
import sys

import pytest

from unisono.errors import ConfigError
from unisono.launchers.streams import parse_streams

PASTED = """
--standalone --nnodes=1 --nproc_per_node=2 --rdzv_backend=c10d --rdzv_endpoint=localhost:0 --rdzv_id=job7
--max_restarts=3 --monitor_interval 5 --start_method spawn --role trainer --node_rank=0 --master_addr=127.0.0.1
--master_port=29501 --tee 3 --log_dir=logs --local_ranks_filter 1 --run_path
"""
SHOW = """
import json, os, sys
shown = ("RANK", "WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS")
print(json.dumps([sys.argv[1:], *(os.environ[name] for name in shown)]))
print("of", os.environ["RANK"], file=sys.stderr)
"""


def test_a_pasted_command_line_runs(place):
    """All that tutorials write, underscores included, in one launch: places, names, arguments, kept output."""
    body = place.write(SHOW)
    process = place.popen(sys.executable, "-m", "unisono", "run", *shlex.split(PASTED), body, "--lr_rate", "--tee=1")
    done = place.finish(process)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("[rank 1] ")
    assert json.loads(line[9:]) == [["--lr_rate", "--tee=1"], "1", "2", "trainer", "job7", "3"]
    assert "[rank 1] of 1" in done.stderr and "of 0" not in done.stderr
    (kept,) = (place.folder / "logs").iterdir()
    assert kept.name.startswith("job7_") and f"kept in logs/{kept.name}" in done.stderr
    for rank in (0, 1):
        assert json.loads((kept / "attempt_0" / str(rank) / "stdout.log").read_text())[1] == str(rank)
        assert (kept / "attempt_0" / str(rank) / "stderr.log").read_text() == f"of {rank}\n"


def test_redirected_output_is_not_shown(place):
    """-r for one rank's stdout: its file has it, the terminal does not; a second launch gets a directory of its own."""
    body = place.write(SHOW)
    for _ in range(2):
        process = place.popen(
            sys.executable, "-m", "unisono", "run", "-n2", "-r", "0:1", "--log-dir", "logs", body
        )  # fmt: skip
        done = place.finish(process)
        assert [line[:9] for line in done.stdout.splitlines()] == ["[rank 1] "]
        assert sorted(re.findall(r"^\[rank \d\] of \d", done.stderr, re.M)) == ["[rank 0] of 0", "[rank 1] of 1"]
    files = sorted(path.relative_to(place.folder / "logs").parts[1:] for path in place.folder.glob("logs/*/*/*/*"))
    assert files == [("attempt_0", "0", "stdout.log")] * 2


def test_a_program_that_is_not_python(place):
    """--no-python starts anything, its failure is told, and it ends by a broken pipe as it would alone."""
    script = place.folder / "job.sh"
    script.write_text(
        '#!/bin/sh\necho "$1 $RANK"\nyes | head -n1 >/dev/null\n[ "$RANK" = 1 ] || { touch said; sleep 50; }\n'
        "while [ ! -e said ]; do sleep 0.05; done\nexit 5\n"
    )
    script.chmod(0o700)
    process = place.popen(sys.executable, "-m", "unisono", "run", "-n2", "--no_python", "./job.sh", "hello")
    done = place.finish(process)
    assert done.returncode == 5
    assert sorted(done.stdout.splitlines()) == ["[rank 0] hello 0", "[rank 1] hello 1"]
    assert "rank 1 of 2 exited with code 5" in done.stderr
    assert "Broken pipe" not in done.stderr
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN  # what a new program would have inherited


def test_streams_are_pairs_of_rank_and_number():
    """A number for all, or one for each rank that is named."""
    assert parse_streams("--tee", "0:3,2:1") == {0: 3, 2: 1}
    for wrong in ("4", "0:4", "x", "0:", "", "1,2"):
        with pytest.raises(ConfigError, match="expected --tee"):
            parse_streams("--tee", wrong)
