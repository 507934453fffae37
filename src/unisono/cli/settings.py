"""Settings that several verbs take in the same form."""

from collections.abc import Iterable

from unisono.errors import ConfigError


def pairs(option: str, given: Iterable[str], form: str = "NAME=VALUE") -> dict[str, str]:
    """Return the settings of an option that is given as NAME=VALUE, perhaps several times.

    Raises:
        ConfigError: One of them has no ``=`` or no name; names the option.
    """
    found = {}
    for setting in given:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise ConfigError(f"expected {option} {form}, got {setting!r}.")
        found[name] = value
    return found
