"""Every error that unisono raises on purpose.

Each leaf also inherits the builtin it specialises, so ``except ValueError`` keeps working::

    UnisonoError
    ├── ConfigError (ValueError)            a setting is wrong; nothing has started yet
    │   ├── ScoreMismatch                   the run directory belongs to another score
    │   └── EnvironmentDrift                software or hardware differs from the run's first launch
    ├── WorldError (RuntimeError)           the environment does not describe a world
    ├── LaunchError (RuntimeError)          processes cannot be started as asked
    ├── WorkerFailed (RuntimeError)         a started process failed; carries rank and exit code
    ├── PeerLost (ConnectionError)          another rank went away inside a collective
    ├── LeaderFailed (RuntimeError)         rank 0 has stopped the run, for the reason it gives
    ├── RankDivergence (RuntimeError)       ranks disagree where they must be equal
    ├── PlaceError (RuntimeError)           code runs on the wrong ranks: a collective where only one of them is
    ├── CallbackTimeout (TimeoutError)      a callback took longer than its deadline
    ├── StepError (RuntimeError)            a training step cannot be computed as asked
    ├── NonFiniteError (ArithmeticError)    NaN or infinity in a loss or gradient
    ├── DataError (ValueError)              data is missing, malformed or not what was pinned
    └── CheckpointError (OSError)           a checkpoint cannot be written, or none can be trusted

    RunStopped (SystemExit)                 not an error: the run was asked to stop, and has saved its state

A message says what was expected, what was found, where it came from, and the fix. This module imports
nothing.
"""


class UnisonoError(Exception):
    """Root of every error that unisono raises on purpose."""


class ConfigError(UnisonoError, ValueError):
    """A setting is wrong or contradicts another; raised before any process starts where possible."""


class ScoreMismatch(ConfigError):
    """The run directory was started with another score (model, data, seed, batch size, replicas)."""


class EnvironmentDrift(ConfigError):
    """Software, CPU capability or threads differ from those the run was started with."""


class WorldError(UnisonoError, RuntimeError):
    """The environment variables of a launcher are incomplete or contradict each other."""


class LaunchError(UnisonoError, RuntimeError):
    """Processes cannot be started as asked."""


class WorkerFailed(UnisonoError, RuntimeError):
    """A started process failed.

    Attributes:
        rank: The rank that failed first.
        exit_code: Its exit code; 128 + n for death by signal n.
    """

    def __init__(self, message: str, *, rank: int, exit_code: int) -> None:
        super().__init__(message)
        self.rank = rank
        self.exit_code = exit_code


class PeerLost(UnisonoError, ConnectionError):
    """Another rank went away, or did not answer in time, inside a collective."""


class LeaderFailed(UnisonoError, RuntimeError):
    """Rank 0 has stopped the run; its own error says why."""


class RankDivergence(UnisonoError, RuntimeError):
    """Ranks disagree about something that must be equal on all of them."""


class PlaceError(UnisonoError, RuntimeError):
    """Code is on the wrong ranks: a collective where only one rank runs, or a component that cannot run here."""


class CallbackTimeout(UnisonoError, TimeoutError):
    """A callback took longer than the trainer allows, and was interrupted."""


class StepError(UnisonoError, RuntimeError):
    """A training step cannot be computed as asked (loss not a scalar, batch used twice, ...)."""


class NonFiniteError(UnisonoError, ArithmeticError):
    """A loss or gradient is NaN or infinite; the weights have not been changed.

    Attributes:
        step: The step (1-based) whose update was refused.
        replicas: The replicas whose loss or gradient is not finite, ascending.
    """

    def __init__(self, message: str, *, step: int, replicas: tuple[int, ...]) -> None:
        super().__init__(message)
        self.step = step
        self.replicas = replicas


class DataError(UnisonoError, ValueError):
    """Data is missing, malformed or not what was pinned; names the file and, where known, the byte."""


class CheckpointError(UnisonoError, OSError):
    """A checkpoint or a run's other files cannot be written, or no checkpoint in the directory can be trusted.

    Attributes:
        is_final: Whether the same program must meet it again, as on a full disk.
    """

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class RunStopped(SystemExit):
    """The run was asked to stop (SIGTERM, Ctrl-C, the launcher) and has saved its state: the same command goes on.

    Not an `Exception`: unless it is caught by name, it ends the program with exit code 75 (``EX_TEMPFAIL``: try again).

    Attributes:
        step: The last step that is done, and saved.
    """

    exit_code = 75

    def __init__(self, step: int) -> None:
        super().__init__(self.exit_code)
        self.step = step

    def __str__(self) -> str:
        return f"stopped after step {self.step}, and saved; the same call goes on"
