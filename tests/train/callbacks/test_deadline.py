"""A callback that hangs is interrupted and named."""

import contextlib
import signal
import threading
import time

import pytest
import torch
from torch import nn

import unisono
from train.callbacks.small import fit
from unisono.callbacks import Callback
from unisono.errors import CallbackTimeout, ConfigError
from unisono.train.callbacks.deadline import CallbackDeadline


def watched(function, deadline_s=0.3):
    watch = CallbackDeadline(deadline_s)
    try:
        watch.call("Sleeper.on_step_end", 3, function)
    finally:
        watch.close()


def test_a_sleeper_is_interrupted():
    """In the main thread even while it sleeps: long before it would have ended, with its name and the step."""
    began = time.monotonic()
    with pytest.raises(CallbackTimeout, match=r"Sleeper\.on_step_end at step 3 took longer than 0\.3 s. Hint"):
        watched(lambda: time.sleep(60))
    assert time.monotonic() - began < 30


def test_in_another_thread_too():
    """Loopback ranks are threads: interrupted as soon as they run Python code."""
    heard = []

    def play():
        def work():
            until = time.monotonic() + 60
            while time.monotonic() < until:
                time.sleep(0.01)

        try:
            watched(work)
        except CallbackTimeout as error:
            heard.append(str(error))

    thread = threading.Thread(target=play)
    thread.start()
    thread.join(40)
    assert "took longer than" in heard[0]


def test_in_time_is_in_time():
    """Nothing happens to calls in time, however many; own errors and Ctrl-C pass through."""
    watch = CallbackDeadline(20.0)
    for _ in range(1000):
        watch.call("a", 1, lambda: None)
    for error in (KeyboardInterrupt, ZeroDivisionError):

        def fail(error=error):
            raise error

        with pytest.raises(error):
            watch.call("a", 1, fail)
    watch.close()
    watch.close()
    watch.call("a", 2, lambda: None)
    watch.close()
    with pytest.raises(ConfigError, match="above 0 s"):
        CallbackDeadline(0)


@pytest.mark.parametrize("refuses", [True, False])
def test_a_trainer_that_never_trains_leaves_nothing_behind(refuses):
    """Neither a handler nor a thread, also where a callback's setup refuses to go on."""

    class Picky(Callback):
        def setup(self, loop):
            if refuses:
                raise ConfigError("not like this")

    with unisono.Run(replicas=1) as run:
        model = nn.Linear(2, 2)
        expected = pytest.raises(ConfigError, match="not like this") if refuses else contextlib.nullcontext()
        with expected:
            unisono.Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.MSELoss(),
                            callbacks=[Picky()])  # fmt: skip
        assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL
        assert all(thread.name != "callback-deadline" for thread in threading.enumerate())


def test_the_trainer_watches():
    """Through the trainer: the run ends with the callback's name."""

    class Sleeper(Callback):
        def on_step_end(self, loop):
            if loop.step == 2:
                time.sleep(60)

    with pytest.raises(CallbackTimeout, match=r"callback Sleeper\.on_step_end at step 2") as caught:
        fit([Sleeper()], deadline_s=0.3)
    assert "on rank 0 of 1" in caught.value.__notes__[0]
