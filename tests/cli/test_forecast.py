"""``unisono forecast``: from the command line alone, as table, JSON, file and picture; wrong settings."""

import json

import pytest
from click.testing import CliRunner

from report.drawn import tree_of
from unisono.cli.main import unisono
from unisono.cli.output.examples import EXAMPLES
from unisono.cli.output.tables import section_lines
from unisono.report.forecast_section import forecast_section

JOB = ("--parameters", "7e9", "--parameter-bytes", "2", "--sample-time", "0.9s", "--batch-size", "4096")


def asked(*arguments):
    return CliRunner().invoke(unisono, ["forecast", *arguments])


def told(*arguments):
    done = asked(*JOB, *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_json_holds_job_machine_and_every_forecast():
    """Units are those of the command line; defaults are shown, not hidden."""
    found = told("-n", "1,24,8..64", "--between", "100Gb/s", "--nics", "4", "--weak", "--steps", "10")
    assert [row["ranks"] for row in found["forecasts"]] == [1, 8, 16, 24, 32, 64]
    assert found["machine"]["between"]["s_per_byte"] == pytest.approx(8e-11)
    assert found["machine"]["nics"] == 4
    assert found["machine"]["inside"]["latency_s"] == pytest.approx(3e-6)
    assert found["job"]["gradient_bytes"] == 14e9
    assert found["job"]["weak"] is True
    assert len(found["forecasts"][0]["predictions"]) == 9
    assert found["simulated"] == []


def test_the_example_of_the_help_runs_and_has_no_empty_column():
    """The second example needs no run, so it is run as it stands; columns are those that were asked for."""
    done = CliRunner().invoke(unisono, [*EXAMPLES["forecast"][1].split()[1:], "-n", "1,8"])
    assert done.exit_code == 0, done.output
    assert "efficiency" in done.stdout and "useful" not in done.stdout
    assert "useful" in asked(*JOB, "-n", "1,8", "--mtbf", "50000h").stdout


def test_the_table_is_readable():
    """Best strategy and efficiency by ranks, failures, idle ranks, all strategies, in 80 columns."""
    done = asked(*JOB, "--ranks", "1..65536", "--mtbf", "50000h", "--steps", "1000")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.strip().startswith("65,536") for line in lines)
    assert any(line.startswith("65,536") and line.endswith("61,440") for line in lines)
    assert any(line.strip().startswith("owner-computes") for line in lines)


def test_a_run_that_never_ends_is_json_too():
    """Failures that come faster than checkpoints: said in a word, since JSON has no infinity."""
    found = told("--ranks", "1024", "--mtbf", "1min", "--checkpoint-time", "1h", "--steps", "10")
    assert found["forecasts"][0]["run_s"] == "never"
    assert any("never" in line for line in section_lines(forecast_section(found)))


def test_it_is_kept_and_drawn(tmp_path):
    """A file for unisono report, and a picture; a forecast may be replaced, another file not."""
    kept, picture = tmp_path / "f.json", tmp_path / "f.svg"
    for _ in range(2):
        done = asked(*JOB, "-o", str(kept), "--picture", str(picture))
        assert done.exit_code == 0, done.output
    assert json.loads(kept.read_text())["kind"] == "unisono forecast"
    assert len(list(tree_of(picture).iter("svg"))) == 3
    kept.write_text("{}")
    done = asked(*JOB, "-o", str(kept))
    assert done.exit_code == 2
    assert "none of ours" in done.output
    assert kept.read_text() == "{}"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "--parameters, --sample-time, --batch-size"),
        ((*JOB, "--between", "400"), "such as 400Gb/s"),
        ((*JOB, "--ranks", "0"), "each from 1 to 65536"),
        ((*JOB, "--ranks", "8..1"), "each from 1 to 65536"),
        ((*JOB, "--ranks", ""), "each from 1 to 65536"),
        ((*JOB, "--node-size", "0"), "--node-size as a whole number"),
        ((*JOB, "--checkpoint-time", "5s"), "--mtbf too"),
        ((*JOB, "--overlap", "3"), "--overlap as a number from 0 to 1"),
        ((*JOB, "--servers", "0"), "--servers as a whole number"),
        ((*JOB, "--jitter", "nan"), "--jitter as a number"),
        ((*JOB, "--parameters", "0"), "--parameters as a number from 1 to 1e+15, got 0."),
        ((*JOB, "--parameters", "1e999"), "--parameters as a number from 1 to 1e+15, got 1e999."),
        ((*JOB, "--sample-time", "1e300s"), "such as 5us, 12ms or 3h, seconds from 0 to 1,000,000,000,000"),
        ((*JOB, "--between", "1e-300Gb/s"), "or 50GB/s (bytes), bytes a second from 1 to 1e+18"),
        (("no-such-recipe",), "no-such-recipe"),
    ],
)
def test_wrong_settings_are_refused(arguments, expected):
    """Exit code 2, with what was expected, before anything is measured."""
    done = asked(*arguments)
    assert done.exit_code == 2, done.output
    assert expected in done.output


def test_json_has_no_nan():
    """At the ends of all ranges: whatever is printed is JSON, in which every number is finite."""
    for ends in (("1", "1e-6", "0"), ("1e15", "1024", "1000")):
        arguments = ("--parameters", ends[0], "--parameter-bytes", ends[1], "--jitter", ends[2])
        arguments += ("--sample-time", "1000000d", "--batch-size", "1000000000", "--steps", "1000000000000")
        for mtbf, saving, restart in (("1ns", "1000000d", "1000000d"), ("1000000d", "1ns", "0s")):
            failing = ("--mtbf", mtbf, "--checkpoint-time", saving, "--restart-time", restart, "--ranks", "1,8,65536")
            done = asked(*arguments, *failing, "--inside", "1B/s", "--json")
            assert done.exit_code == 0, done.output
            json.loads(done.stdout, parse_constant=pytest.fail)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_recipe_is_measured(tmp_path):
    """The short measurement gives a job and a machine of this host; what is given takes its place."""
    done = asked("digits", "--batch-size", "32", "--json", "-o", str(tmp_path / "f.json"))
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["job"]["gradient_bytes"] == 4 * 6186
    assert found["job"]["batch_size"] == 32
    assert found["job"]["sample_s"] + found["job"]["micro_s"] > 0
    # On a machine that does other work too, the line through the messages' times may begin at 0.
    assert found["machine"]["inside"]["latency_s"] + found["machine"]["inside"]["s_per_byte"] > 0
    assert [row["ranks"] for row in found["forecasts"]] == [1, 2, 4, 8]
    assert "digits measured on this machine" in found["notes"][0]
