"""Schedules count optimizer steps, on any number of ranks and after a resume."""

import json
import math

import pytest
import torch

from ranks import run_threads
from train.callbacks.small import everywhere, fit
from unisono.callbacks import Plateau, warmup_cosine, warmup_linear
from unisono.errors import ConfigError


def rates(make, steps, **settings):
    """Return the learning rate that each step uses."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, found = make(optimizer, **settings), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_warmup_and_cosine():
    """A straight line up, half a cosine down, and flat after the end."""
    found = rates(warmup_cosine, 13, total_steps=11, warmup_steps=4, final_factor=0.1)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    down = [0.1 + 0.9 * (1 + math.cos(math.pi * share / 7)) / 2 for share in range(8)]
    assert found[3:11] == pytest.approx(down)
    assert found[11:] == pytest.approx([0.1, 0.1])


def test_warmup_and_straight_down():
    """Up and down in straight lines; without a warm-up the first step uses it all."""
    found = rates(warmup_linear, 6, total_steps=5, warmup_steps=0)
    assert found == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    assert rates(warmup_cosine, 2, total_steps=1) == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize("settings", [(5, 5, 0), (5, -1, 0), (0, 0, 0), (5, 1, 1.5), (5, 1, -0.1)])
def test_wrong_settings_are_refused(settings):
    """At once, for both."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    total, warmup, final = settings
    for make in (warmup_cosine, warmup_linear):
        with pytest.raises(ConfigError, match="warmup_steps < total_steps"):
            make(optimizer, total_steps=total, warmup_steps=warmup, final_factor=final)


def test_a_step_is_a_step_in_any_world(tmp_path):
    """Accelerate steps a schedule once per rank; here the ledger has one learning rate a step, whatever the world."""

    def program(transport):
        out = tmp_path / f"{transport.world_size}"
        fit(transport=transport, out=out, schedule=lambda o: warmup_cosine(o, total_steps=10, warmup_steps=2))
        return [json.loads(line)["lr"] for line in (out / "ledger.jsonl").read_text().splitlines()]

    found = [float.fromhex(rate) for rate in everywhere(program, worlds=(2, 4))]
    assert found == pytest.approx([0.1 * rate for rate in rates(warmup_cosine, 10, total_steps=10, warmup_steps=2)])


def plateau(transport="auto", out=None, **settings):
    """Fit with a score that never improves enough; return the rates used."""
    callback = Plateau("test_loss", patience=0, factor=0.5, threshold=10.0, threshold_mode="abs")
    result, trainer = fit([callback], transport=transport, out=out, epochs=4, **settings)
    return trainer.optimizer.param_groups[0]["lr"], result["fingerprint"]


def test_plateau(tmp_path):
    """Three evaluations without improvement halve the rate three times, alike on all ranks and after a resume."""
    expected = list(plateau())
    assert expected[0] == pytest.approx(0.1 / 8)
    assert run_threads(plateau, 3) == [expected] * 3
    plateau(out=tmp_path, max_steps=10)
    assert list(plateau(out=tmp_path)) == expected


def test_plateau_mode_is_checked():
    """Min or max."""
    with pytest.raises(ConfigError, match="mode"):
        Plateau("test_loss", mode="lower")
