"""Settings: fields of a frozen dataclass that declare their default, help, unit and accepted values.

Example:

    @dataclasses.dataclass(frozen=True)
    class Reading(Settings, title="Data"):
        batch_size: int = setting(1024, "examples of each worker's batch", "examples", minimum=1)

`Reading(batch_size=0)` raises `SettingError`; `flags.define` creates the flag `--batch_size` from the same declaration.
"""

import dataclasses
import math
import numbers
import operator
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ctr_trainer.system.messages.errors import NamedArguments, UserError, masked

_KEY = "setting"
_WITH_PASSWORD = re.compile(r"rediss?://.*@")


@dataclasses.dataclass(frozen=True)
class Setting:
    """The declaration of a field, in addition to its type and its default.

    Attributes:
      help: text that begins with a verb or a noun.
      unit: unit of the value, such as `steps`; "" if it has none.
      choices: the accepted texts; for a `float | str`, the texts accepted in addition to numbers; () for any.
      kinds: the classes, by name, if the field is one of several kinds of `Settings`, see `one_of`; else None.
      of: the choices of another setting for which this setting exists; () for all of them.
      minimum, maximum, above, below: bounds of a number, or of each number of a tuple; None for no bound.
      fewest: smallest number of values of a tuple.
      flag: name of the flag; "" for the default, see `flag_of`; None if the setting has no flag.
      example: value of a tuple, as the help shows it.
      alike: whether all ranks of a job need the same value.
    """

    help: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    kinds: typing.Any = None
    of: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    fewest: int = 0
    flag: str | None = ""
    example: tuple[Any, ...] = ()
    alike: bool = True

    def problem(self, kind: Any, default: Any, value: Any) -> str:
        """Returns the problem with a value, as text to append to `name=value`; "" if the value is accepted.

        `kind` is the annotated type of the field. The default is always accepted.
        """
        if value == default and type(value) is type(default):
            return ""
        if value is None and types.NoneType in typing.get_args(kind):
            return ""
        if typing.get_origin(kind) is tuple:
            (each,) = set(typing.get_args(kind)) - {Ellipsis}
            if not isinstance(value, tuple) or not all(_is(each, part) for part in value):
                return f": expected {_EXPECTED[each].removeprefix('an ').removeprefix('a ')}s"
            if len(value) < self.fewest:
                return f": expected {self.fewest} or more, each {self._bounds()}"
            return "" if each is str or all(map(self._is_within, value)) else f" must each be {self._bounds()}"
        kinds = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
        number = next((each for each in kinds if each in (int, float)), None)
        if number and self.choices:
            if value in self.choices or (_is(number, value) and self._is_within(value)):
                return ""
            return f": expected {', '.join(self.choices)} or a number, which must be {self._bounds()}"
        if self.choices:
            return "" if value in self.choices else f": choose one of {', '.join(self.choices)}"
        if not any(_is(each, value) for each in kinds):
            return f": expected {' or '.join(_EXPECTED[each] for each in kinds)}"
        if self.unit in ("path", "URL") and any(path.startswith("~") for path in str(value).split(",")):
            return ": a ~ is not replaced by a home directory here: write the whole path"
        if isinstance(value, str) and _WITH_PASSWORD.match(value):
            return (
                ": the user and the password of a cluster would be printed and saved: write USER:PASSWORD into a file, "
                "name it with redis_auth_file, and give the URL without them"
            )
        return "" if not number or value is None or self._is_within(value) else f" must be {self._bounds()}"

    def _is_within(self, value: Any) -> bool:
        return all(is_within(value, bound) for _, is_within, bound in self._given_bounds())

    def _bounds(self) -> str:
        return " and ".join(f"{words} {bound:g}" for words, _, bound in self._given_bounds())

    def _given_bounds(self) -> list[tuple[str, Callable[[Any, Any], bool], float]]:
        """Returns (words, comparison that a value must pass, bound) for each bound that is set."""
        bounds = [
            ("at least", operator.ge, self.minimum),
            ("above", operator.gt, self.above),
            ("at most", operator.le, self.maximum),
            ("below", operator.lt, self.below),
        ]
        return [(words, is_within, bound) for words, is_within, bound in bounds if bound is not None]


def setting(default: Any, text: str, unit: str = "", **rest: Any) -> Any:
    """Returns the dataclass field of a `Setting` with the help `text`; `rest` are its other attributes."""
    return dataclasses.field(default=default, metadata={_KEY: Setting(text, unit, **rest)})


def one_of(default: Any, kinds: Mapping[str, type["Settings"]], text: str, **rest: Any) -> Any:
    """Returns the field of a setting that is an instance, or the class attribute `name`, of one of several classes."""
    return dataclasses.field(default=default, metadata={_KEY: Setting(text, kinds=kinds, **rest)})


def same_as(settings: type["Settings"], name: str) -> Any:
    """Returns a dataclass field with the setting that `settings` declares as its field `name`; one flag sets both."""
    field = settings.__dataclass_fields__[name]
    declared = dataclasses.replace(field.metadata[_KEY], flag=flag_of(settings, field))
    return dataclasses.field(default=field.default, metadata={_KEY: declared})


def declared(field: Any) -> Any:
    """Returns the `Setting` of a dataclass field; None if it is not a setting."""
    return field.metadata.get(_KEY) if isinstance(field, dataclasses.Field) else None


def flag_of(owner: type["Settings"], field: dataclasses.Field[Any]) -> Any:
    """Returns the flag of a setting of `owner`; None if it has none.

    The default is the name of the field, or `FLAG=name`, such as `optimizer_params=beta1`, if `owner` has a
    `params_flag`: the command line then gives `--optimizer_params=beta1=0.8`.
    """
    if declared(field).flag == "":
        return f"{owner.params_flag}={field.name}" if owner.params_flag else field.name
    return declared(field).flag


class SettingError(UserError):
    """A setting that is refused; `by_flags` is the message for the command line, with `--flag=value`."""

    def __init__(self, text: str, by_flags: str) -> None:
        super().__init__(text)
        self.by_flags = by_flags


@dataclasses.dataclass(frozen=True)
class _Spelled:
    """A setting in a message, see `Settings.refused`; `dashes` is "--" on the command line and "" in Python."""

    dashes: str
    name: str
    value: object

    def __format__(self, spec: str) -> str:
        if self.dashes and isinstance(self.value, bool):
            return f"--{'' if self.value or spec else 'no'}{self.name}"
        separator = ":" if "=" in self.name else ","
        return f"{self.dashes}{self.name}" if spec else f"{self.dashes}{self.name}={shown(self.value, separator)}"


def shown(value: Any, separator: str = ",") -> str:
    """Returns a value as a user writes it, on the command line or as an argument."""
    if isinstance(value, tuple | list):
        return separator.join(map(shown, value))
    if dataclasses.is_dataclass(value):  # An instance of one of several kinds, which have names.
        kind: Any = value
        return kind.name
    return f"{value:g}" if isinstance(value, float) else masked(str(value))


class Settings(NamedArguments):
    """The base class of frozen dataclasses of settings; the constructor refuses wrong values.

    `class Reading(Settings, title="Data")` sets the title of the flags in the help; with `params_flag`, one flag takes
    the settings as `name=value`, except for those that name a flag of their own.
    """

    title: typing.ClassVar[str] = ""
    params_flag: typing.ClassVar[str] = ""
    __dataclass_fields__: typing.ClassVar[dict[str, dataclasses.Field[Any]]]  # Every subclass is a dataclass.

    def __init_subclass__(cls, title: str = "", params_flag: str = "", **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls.title, cls.params_flag = title or cls.title, params_flag or cls.params_flag
        fields = {**getattr(cls, "__dataclass_fields__", {}), **vars(cls)}  # Its own are not processed yet.
        helps = {name: declared(each).help for name, each in fields.items() if declared(each)}
        texts = [f"\n      {name}: {help}" for name, help in helps.items() if f" {name}: " not in (cls.__doc__ or "")]
        if texts:  # For `help()`.
            cls.__doc__ = f"{cls.__doc__ or cls.__name__}\n\n    Settings:{''.join(texts)}\n    "

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if found := declared(field):
                problem = self._problem(field, found, getattr(self, field.name))
                if problem:
                    raise self.refused(f"{{{field.name}}}{problem}")
        for text in self.conflicts():
            raise self.refused(text)

    def conflicts(self) -> Iterator[str]:
        """Yields what is wrong with settings of which each alone is accepted, as texts for `refused`."""
        return iter(())

    def _problem(self, field: dataclasses.Field[Any], found: Setting, value: Any) -> str:
        """Returns the problem with a value; replaces a list by a tuple, and the name of a kind by an instance of it."""
        if found.kinds is not None:
            if type(value) in found.kinds.values():
                return ""
            if not isinstance(value, str) or value not in found.kinds:
                return f": choose one of {', '.join(found.kinds)}"
            value = found.kinds[value]()
        elif isinstance(value, list) and typing.get_origin(field.type) is tuple:
            value = tuple(value)
        object.__setattr__(self, field.name, value)
        return "" if found.kinds is not None else found.problem(field.type, field.default, value)

    def refused(self, text: str, **others: object) -> SettingError:
        """Returns the `SettingError` of these settings, and of the `Settings` in them.

        In the text, `{name}` is replaced by a setting and its value, `{name:name}` by the setting, and the names of
        `others` by their values.
        """
        return _refused(text, self._spelled(), others)

    @classmethod
    def name_in_messages(cls, field: dataclasses.Field[Any]) -> str:
        """Returns the name of a setting after the dashes in messages for the command line."""
        return flag_of(cls, field) or field.name

    def _spelled(self) -> dict[str, tuple[str, object]]:
        """Returns (flag, value) by the names of these settings and of the `Settings` in them."""
        own: dict[str, tuple[str, object]] = {}
        inner: dict[str, tuple[str, object]] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if declared(field):
                own[field.name] = (self.name_in_messages(field), value)
            elif isinstance(value, Settings):
                inner |= value._spelled()
        return inner | own


def refused(text: str, settings: Mapping[str, object], **others: object) -> SettingError:
    """Returns the `SettingError` of settings that are arguments of a function; each has a flag of the same name."""
    return _refused(text, {name: (name, value) for name, value in settings.items()}, others)


def _refused(text: str, settings: Mapping[str, tuple[str, object]], others: Mapping[str, object]) -> SettingError:
    """Returns the `SettingError` of settings, given by name as (flag, value)."""
    in_python = {name: _Spelled("", name, value) for name, (_, value) in settings.items()}
    as_flags = {name: _Spelled("--", *given) for name, given in settings.items()}
    return SettingError(text.format(**in_python, **others), text.format(**as_flags, **others))


def _is(kind: Any, value: Any) -> bool:
    if kind is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return isinstance(value, kind)


_EXPECTED = {int: "an integer", float: "a number", bool: "True or False", str: "a text", types.NoneType: "None"}
