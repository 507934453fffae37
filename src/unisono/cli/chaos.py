"""``unisono chaos``: disturb a run on purpose, and compare its bits with those of an undisturbed one."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any, NoReturn

import click

from unisono.cli.completion import target_arguments
from unisono.cli.options.fields import ExplainedCommand, out_option, result_options, single
from unisono.cli.options.job import HOST, config_option, run_options, typed_launch
from unisono.cli.output.outcome import FAILED, command_line, complain, conclude, nothing_kept, tell, verb
from unisono.cli.output.tables import answer
from unisono.errors import ConfigError
from unisono.experiments.fault_schedule import KINDS
from unisono.experiments.trials import flag_of
from unisono.options.fields import HOSTS, OUTPUT
from unisono.options.quantities import NODES, RUNS, SEED, SILENCE, STEPS, WORKERS

if TYPE_CHECKING:
    from unisono.experiments.chaos import ChaosReport
    from unisono.experiments.chaos.live import LiveReport


def _kept(given: dict[str, Any]) -> str:
    if given["out"] is None:
        return nothing_kept("the two runs")()
    return f"{given['out']} holds both runs as far as they came. Hint: remove it, then again: {command_line()}"


_NOT = ("out", "live", "spares", "elastic", "checkpoint_every")
"""Of a run's options: what the command has in a sense of its own."""


@click.command(cls=ExplainedCommand, short_help="Kill a run's processes, and prove that its bits stay the same.")
@target_arguments
@config_option("out", "live", "spares", "elastic", *HOST)
@single("workers", "Processes (on each host).", of=WORKERS, default=2, short="-n", word="N", basic=True)
@single("kills", "Faults in all.", of=RUNS, default=10, basic=True)
@single("fault_seed", "Repeats the schedule of faults.", of=SEED, default=0, word="S", basic=True)
@click.option("--fault", "kinds", type=click.Choice(list(KINDS)), multiple=True,
              help="Kind of fault; may be given several times.  [default: all; with other strategies than "
              "exact, all but resize]")  # fmt: skip
@click.option("--live", is_flag=True, help="Kill workers one after the other, and start none again: the others go on.")
@click.option("--grow", is_flag=True, help="With --live: others join for those that have died, and may die as well.")
@click.option("--every-meeting", is_flag=True,
              help="With --live: no schedule, but each worker dies at each exchange of a step.")  # fmt: skip
@single("hosts", "With --live: so many launchers on this machine, as if on a host each; workers and whole hosts "
        "die.", of=NODES, default=1, word="H", group=HOSTS)  # fmt: skip
@single("silence", "With --hosts: seconds without a sign of life after which the others go on without a host.",
        of=SILENCE, usual="1", word="S", group=HOSTS)  # fmt: skip
@single("checkpoint_every", "Recipes: steps between checkpoints.", of=STEPS, word="STEPS", group=OUTPUT, basic=True,
        usual="a quarter of the steps between faults")  # fmt: skip
@out_option("Keep both run directories and the log here.", word="DIR")
@run_options(without=_NOT, scripts_too=True)
@result_options
@verb("chaos", _kept)
def chaos(target: str, args: tuple[str, ...], kinds: tuple[str, ...], live: bool, as_json: bool, grow: bool,
          every_meeting: bool, **given: Any) -> int:  # fmt: skip
    """Run RECIPE or SCRIPT undisturbed, then once more under a schedule of faults, and compare.

    Faults come at steps that --fault-seed decides: kill one worker, kill all, kill the launcher and start the command
    again, stop and continue a worker, change the number of workers. One counts only when it has landed in the midst of
    the run. Takes the options of `unisono train`, or its run file. A script's own ARGS stand after ``--``; it has to
    train through unisono.Run. Its run directory is replaced.

    With ``--live`` a run of N workers loses up to N - 1 of them and goes on with the others (``--live auto``); it takes
    several runs until all have died that ``--kills`` asks for. What they were doing is shown in a table, with the time
    until the others had finished that step. With ``--grow`` a worker is started for each that has died, and one more
    waits: members die, two within one recovery, and those that are about to join. With ``--every-meeting`` each worker
    dies before, during and after each exchange of a step, in as many runs as that takes.

    With ``--hosts H`` each run has H launchers, which meet over loopback as if on H hosts, with N workers each. Workers
    die, two within one recovery, launchers with their workers and alone; or all processes of a host are stopped, which
    is like a cut network, and continued when the others have gone on. While there are three, the deciding one is lost
    as well; as long as it is there it keeps a worker. With ``--grow`` no host is lost, and each launcher replaces its
    own workers.

    Exit code: 0 only when all faults have landed and fingerprints and ledgers are equal; 1 when not; 2 for wrong
    settings; 130 after Ctrl-C.
    """
    many = given.pop("hosts"), given.pop("silence")
    asked = {"grow": grow, "every_meeting": every_meeting, "hosts": many[0] > 1}
    if not live and (wrong := next(filter(asked.get, asked), "")):
        _refuse(f"expected --live with {flag_of(wrong)}. Hint: --live {flag_of(wrong)}")
    from unisono.experiments import chaos as experiment

    given["launch"] = typed_launch(given)
    if live:
        return _chaos_live(target, args, kinds, as_json, given | asked | _of_hosts(*many))
    found = experiment.chaos(target, args, env=os.environ, kinds=kinds, tell=tell, **given)
    parted = found.parted
    plain = {
        "equal": found.equal, "fault_seed": found.fault_seed, "seconds": found.seconds, "landed": found.landed,
        "exit_code": found.exit_code, "reference": found.reference, "disturbed": found.disturbed,
        "parted_at_step": parted and parted[0], "faults": [asdict(fault) for fault in found.faults],
    }  # fmt: skip
    answer(plain, as_json, lambda: _lines(found))
    if found.exit_code:
        complain(f"the disturbed run ended with exit code {found.exit_code}.")
    if parted:
        complain(f"the ledgers differ from step {parted[0]} on, in: {', '.join(parted[1])}.")
    return conclude(found.equal, as_json) or (0 if found.landed == len(found.faults) else FAILED)


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message)


def _of_hosts(hosts: int, silence: float | None) -> dict[str, Any]:
    if hosts == 1 and silence is not None:
        raise ConfigError(f"expected --hosts with --silence {silence:g}. Hint: --hosts 2, or leave it out.")
    return {"hosts": hosts, "silence": silence or 1.0}


def _chaos_live(
    target: str, args: tuple[str, ...], kinds: tuple[str, ...], as_json: bool, given: dict[str, Any]
) -> int:  # fmt: skip
    from unisono.experiments.chaos.live import chaos_live

    if kinds:
        raise ConfigError(f"expected --live or --fault, got both (--fault {kinds[0]}). Hint: --live kills workers.")
    if given["grow"] and given["every_meeting"]:
        raise ConfigError("expected --grow or --every-meeting, got both. Hint: one after the other.")
    found = chaos_live(target, args, env=os.environ, tell=tell, **given)
    tables = {"table": [list(row) for row in found.table()], "kinds": [list(row) for row in found.kinds()]}
    more = {"landed": len(found.deaths), "beyond": found.beyond(), **tables}
    plain = asdict(found) | more
    answer(plain, as_json, lambda: _live_lines(found))
    for fault in found.faults:
        complain(fault)
    wanted = max(1, len(found.deaths)) if given["every_meeting"] else given["kills"]
    return conclude(found.equal, as_json) or (0 if len(found.deaths) == wanted else FAILED)


_LOST = {"member": "a worker", "second": "a second worker", "host": "a host", "launcher": "a launcher",
         "silent": "a stopped host", "decider": "who decides", "silent decider": "who decides, stopped"}  # fmt: skip


def _live_lines(found: "LiveReport") -> Iterator[str]:
    for head, rows in (("doing", found.table()), *([("lost", found.kinds())] if found.hosts > 1 else [])):
        yield f"{head:<18}{'deaths':>7}{'gap, median':>13}{'longest':>9}"
        for name, count, usual, longest in rows:
            yield f"{_LOST.get(name, name):<18}{count:>7}" + (f"{usual:>11.3f} s{longest:>7.3f} s" if longest else "")
    if spread := found.beyond():
        yield f"gap beyond two undisturbed steps: {spread[0]:.3f} s (median), {spread[1]:.3f} s (99th percentile)"
    yield (
        f"{len(found.deaths)} deaths in {found.runs} runs: {found.replayed} steps done again, "
        f"{found.again} computed twice before they were done, {found.joins} workers joined"
    )


def _lines(found: "ChaosReport") -> Iterator[str]:
    yield f"undisturbed  {found.reference}"
    yield f"disturbed    {found.disturbed}"
    times = [fault.recovery_s for fault in found.faults if fault.recovery_s is not None]
    spread = f"; next step after {median(times):.1f} s (median), {max(times):.1f} s (longest)" if times else ""
    yield f"{found.landed} of {len(found.faults)} faults landed in {found.seconds} s{spread}"
