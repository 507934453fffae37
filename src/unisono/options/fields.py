"""Options as fields of dataclasses: each is declared once, and read, checked and shown from there (pure).

In: a dataclass whose fields are made by `option`. Out: its options with type, default, help, unit and bounds. From them
come the keyword in Python (the field), the flag of the command line, the key of run files, completion and the reference
page. What is typed, written into a run file or passed to a function is read by `Option.read` and checked by `check`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from types import NoneType, UnionType
from typing import Any, Union, final, get_args, get_origin

from unisono.errors import ConfigError
from unisono.options.quantities import Quantity, shown

JOB, DATA, PROCESSES, OUTPUT = "Job", "Data", "Workers", "Output"
REPRODUCIBILITY, HOSTS = "Reproducibility", "Several hosts"
"""Headings of ``--help``."""
_TRUTH = {"true": True, "false": False, "yes": True, "no": False}


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """What can be given for one field of a dataclass."""

    name: str = ""  #: Of the field: the keyword in Python.
    key: str = ""  #: In run files; with dashes, the flag of the command line.
    kind: type = str  #: ``bool``, ``int``, ``float``, ``str``, or ``dict`` for texts by name.
    is_list: bool = False  #: Whether it takes several of that kind.
    default: Any = None  #: Of the field; ``MISSING`` where there is none.
    help: str = ""  #: One or two sentences.
    usual: str = ""  #: What stands for the default where nobody gives a value and the field alone does not say it.
    of: Quantity | None = None  #: What a number (of a list: each) may be.
    choices: tuple[str, ...] = ()  #: The words that are allowed; any where empty.
    also: str = ""  #: A word that may stand in place of a value on the command line; the default there.
    word: str = ""  #: What ``--help`` calls the value.
    short: str = ""  #: One letter, such as ``-n``.
    old: tuple[str, ...] = ()  #: Flags by which it was known; they work, and are not shown.
    group: str = ""  #: Heading in ``--help``.
    basic: bool = False  #: Whether ``--help`` shows it; ``--help-all`` shows every option.
    hidden: bool = False  #: Whether no help page shows it.
    recipes: tuple[str, ...] = ()  #: The recipes that it belongs to; empty for all.
    scored: bool = False  #: Whether a recipe's value, where it is given, stands in the score.
    is_path: bool = False  #: Whether it names a file or directory.
    repeats: bool = False  #: Whether a list is given by repeating the flag, and not with commas.

    @property
    def flag(self) -> str:
        """The flag of the command line."""
        return f"--{self.key.replace('_', '-')}"

    @property
    def words(self) -> str:
        """What is expected, where no quantity says it."""
        if self.is_list:
            return "numbers such as 1,2,2" if self.kind is float else "names such as a,b"
        return {bool: "true or false", dict: self.word}.get(self.kind, "a text")

    def read(self, value: Any, name: str = "") -> Any:
        """Return a value of the field's type; a text is read as it was typed.

        Args:
            value: A text, or what a program gives, which `check` looks at.
            name: For messages; the field's where empty.

        Raises:
            ConfigError: The text cannot be read as this type.
        """
        name = name or self.name
        try:
            if value is None or (self.also and value == self.also):
                return value
            if self.kind is dict:
                return self._pairs(name, value)
            if self.is_list:
                parts = value.split(",") if isinstance(value, str) else value
                return tuple(self.kind(self._one(name, part)) for part in parts)
            return self._one(name, value)
        except ConfigError:
            raise
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"expected {name} as {self.words}, got {shown(value)}.") from None

    def _one(self, name: str, value: Any) -> Any:
        if not isinstance(value, str) or self.kind is str:
            return value
        return _TRUTH[value.lower()] if self.of is None else self.of.read(name, value)

    def _pairs(self, name: str, given: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
        if isinstance(given, Mapping):
            return dict(given)
        found = {}
        for setting in given:
            key, equals, value = setting.partition("=")
            if not equals or not key:
                raise ConfigError(f"expected {name} {self.word}, got {setting!r}.")
            found[key] = value
        return found

    def checked(self, value: Any, name: str = "") -> Any:
        """Return a value of the field, numbers as plain ones."""
        name = name or self.name
        if self.choices and value not in self.choices:
            raise ConfigError(f"expected {name} to be one of {', '.join(self.choices)}, got {shown(value)}.")
        if self.kind is bool and not isinstance(value, bool):
            raise ConfigError(f"expected {name} as true or false, got {shown(value)}.")
        if self.of is None:
            return value
        return tuple(self.of.take(name, part) for part in value) if self.is_list else self.of.take(name, value)


def option(
    default: Any = MISSING, text: str = "", *choices: str, make: Callable[[], Any] | None = None, **about: Any
) -> Any:
    """Return a field of a dataclass that is an option.

    Args:
        default: As in `dataclasses.field`.
        text: The help.
        *choices: The words that are allowed.
        make: Makes the default, for one that is not immutable.
        **about: Other attributes of `Option`.
    """
    metadata = {"option": Option(help=text, choices=choices, **about)}
    if make is not None:
        return field(default_factory=make, metadata=metadata)
    return field(default=default, metadata=metadata)


_KNOWN: dict[type, dict[str, Option]] = {}


def options_of(kind: type) -> dict[str, Option]:
    """Return the options among a dataclass's fields by name, in their order."""
    if kind not in _KNOWN:
        found = {}
        for item in fields(kind):
            about: Option | None = item.metadata.get("option")
            if about is not None:
                base, is_list = _kind(item.type)
                default = item.default if item.default_factory is MISSING else item.default_factory()
                found[item.name] = replace(
                    about, name=item.name, key=about.key or item.name, kind=base, is_list=is_list, default=default
                )
        _KNOWN[kind] = found
    return _KNOWN[kind]


def _kind(hint: Any) -> tuple[type, bool]:
    """Return the type of a field's value, and whether it is a list of such."""
    is_union = get_origin(hint) in (Union, UnionType)
    (only,) = [part for part in get_args(hint) if part is not NoneType] if is_union else [hint]
    base = get_origin(only) or only
    if base is tuple:
        return get_args(only)[0], True
    return (dict if issubclass(base, Mapping) else base), False


def check(part: Any, *, as_flags: bool = False) -> None:
    """Check the options of a frozen dataclass that has just been made, and make plain numbers of them.

    Args:
        part: The dataclass; None is left alone where it is a field's default or the field has none.
        as_flags: Whether messages name flags of the command line instead of fields.
    """
    for name, item in options_of(type(part)).items():
        value = getattr(part, name)
        if value is not None or item.default not in (None, MISSING):
            object.__setattr__(part, name, item.checked(value, item.flag if as_flags else name))


def taken(kind: type, given: dict[str, Any], *names: str) -> dict[str, Any]:
    """Take what was given for the options of a dataclass out of what a command was given.

    Args:
        kind: The dataclass.
        given: Values by key, None where nothing was given; changed.
        *names: Fields; all where there are none.

    Returns:
        The values by field, without those that were not given.

    Raises:
        ConfigError: A text cannot be read; names the flag.
    """
    found = {}
    known = options_of(kind)
    for name in names or known:
        item = known[name]
        value = given.pop(item.key, None)
        if value is not None and value != ():
            found[name] = item.read(value, item.flag)
    return found
