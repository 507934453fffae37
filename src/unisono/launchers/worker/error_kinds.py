"""What an exception in a worker means: the loss of a peer, a mistake in the program, an error that comes again.

In: an exception, or its words. Out: yes or no. Must not import torch.
"""

import re

from unisono.errors import ConfigError, DataError, LaunchError, NonFiniteError, StepError, UnisonoError, WorldError
from unisono.system.disk import is_lasting

# The same program on the same data raises them again, as it does with a full disk: a restart would only repeat them.
_FINAL = (ConfigError, DataError, LaunchError, NonFiniteError, StepError, WorldError, SyntaxError)
# Of the program itself, not of what is around it: no file, no network, no device.
_MISTAKES = (AttributeError, ImportError, NameError, TypeError)

_LOST_PEER_TYPES = frozenset({"LeaderFailed", "PeerLost", "DistBackendError", "DistNetworkError", "DistStoreError"})
_LOST_PEER_TEXT = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|timed out|timeout|socket closed|end of file", re.IGNORECASE
)


def is_final(error: BaseException) -> bool:
    """Whether the same program must fail again, whichever rank it was and whenever."""
    return isinstance(error, _FINAL) or is_lasting(error)


def is_mistake(error: BaseException) -> bool:
    """Whether it is a mistake in the program: it comes again where all ranks met it alike before the first step."""
    if isinstance(error, _MISTAKES):
        return True
    if isinstance(error, OSError) or type(error).__name__ == "OutOfMemoryError":
        return False
    said = [text_of(error)] * isinstance(error, UnisonoError) + [*getattr(error, "__notes__", ())]
    return any("Hint: " in each for each in said)  # such as a note of ours on torch's error about shapes


def is_secondary(error: BaseException) -> bool:
    """Whether it looks like the consequence of another rank's failure."""
    return any(map(_blames_peer, _chain(error)))


def text_of(error: BaseException) -> str:
    """Return an exception's text, also where it cannot say what it is."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the failure
        return "<the exception has no readable text>"


def _chain(error: BaseException) -> list[BaseException]:
    # A library may catch "connection closed" and raise its own error: the link stays in cause or context.
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or link.__context__
    return links


def _blames_peer(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _LOST_PEER_TYPES:
        return True
    return isinstance(error, (RuntimeError, ConnectionError)) and bool(_LOST_PEER_TEXT.search(text_of(error)))


def blames_peer(type_name: str, message: str) -> bool:
    """Whether an error of which only the words are known looks like the consequence of another rank's failure."""
    is_likely = type_name == "RuntimeError" or type_name.startswith("Connection") or type_name == "BrokenPipeError"
    return type_name in _LOST_PEER_TYPES or (is_likely and bool(_LOST_PEER_TEXT.search(message)))
