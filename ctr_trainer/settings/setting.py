"""Settings: the fields of a frozen dataclass that say their own default, help, unit and accepted values.

Example:

    @dataclasses.dataclass(frozen=True)
    class Reading(Settings, title="Data"):
        batch_size: int = setting(1024, "examples of each worker's batch", "examples", minimum=1)

`Reading(batch_size=0)` raises `SettingError`; `flags.define` makes the flag `--batch_size` of the same declaration.
"""

import dataclasses
import math
import numbers
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from ctr_trainer.system.messages.errors import UserError, masked

_KEY = "setting"
_WITH_PASSWORD = re.compile(r"rediss?://.*@")


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a field says in addition to its type and its default.

    Attributes:
      help: begins with a verb or with its noun.
      unit: unit of the value, such as `steps`; "" if it has none.
      choices: the accepted texts; of a `float | str` those besides numbers; () for any.
      kinds: by name, the classes of a field that is one of several kinds of `Settings`, see `one_of`; else None.
      hints: by the name of a kind that does not exist, what to use instead.
      of: the choices of another setting that have this setting; () if all have it.
      minimum, maximum, above, below: bounds of a number, or of each number of a tuple; None for no bound.
      flag: the flag's name; "" for the field's own; None for a setting that has no flag.
      params_flag: the flag that takes `name=value` pairs: of a field with `kinds`, for the settings of its kinds; of a
        setting of such a kind, the same flag if that is how the command line sets it. "" for none.
      example: a tuple's value, as the help shows it.
      alike: whether all ranks of a job need the same value.
    """

    help: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    kinds: typing.Any = None
    hints: typing.Any = dataclasses.field(default_factory=dict)
    of: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    flag: str | None = ""
    params_flag: str = ""
    example: tuple[Any, ...] = ()
    alike: bool = True

    def problem(self, kind: Any, default: Any, value: Any) -> str:
        """Returns what is wrong with a value, as text to follow `name=value`; "" if nothing is.

        `kind` is the type that the field is annotated with. Its default is always accepted.
        """
        if value == default and type(value) is type(default):
            return ""
        if value is None and types.NoneType in typing.get_args(kind):
            return ""
        if typing.get_origin(kind) is tuple:
            (each,) = set(typing.get_args(kind)) - {Ellipsis}
            if not isinstance(value, tuple) or not all(_is(each, part) for part in value):
                return f": expected {_EXPECTED[each].removeprefix('an ').removeprefix('a ')}s"
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
        if isinstance(value, str) and _WITH_PASSWORD.match(value):
            return (
                ": the user and the password of a cluster would be printed and saved: write USER:PASSWORD into a file, "
                "name it with redis_auth_file, and give the URL without them"
            )
        return "" if not number or value is None or self._is_within(value) else f" must be {self._bounds()}"

    def unknown_kind(self, name: Any) -> str:
        """Returns what is wrong with the name of an unknown kind, as text to follow `name=value`."""
        hint = f"; {self.hints[name]}" if name in self.hints else ""
        return f": choose one of {', '.join(self.kinds)}{hint}"

    def _is_within(self, value: Any) -> bool:
        return all(is_within(value, bound) for _, is_within, bound in self._given_bounds())

    def _bounds(self) -> str:
        return " and ".join(f"{words} {bound:g}" for words, _, bound in self._given_bounds())

    def _given_bounds(self) -> list[tuple[str, Callable[[Any, Any], bool], float]]:
        """Returns (words, whether a value is within a bound, the bound) of each bound that is set."""
        bounds = [
            ("at least", operator.ge, self.minimum),
            ("above", operator.gt, self.above),
            ("at most", operator.le, self.maximum),
            ("below", operator.lt, self.below),
        ]
        return [(words, is_within, bound) for words, is_within, bound in bounds if bound is not None]


def setting(default: Any, text: str, unit: str = "", **rest: Any) -> Any:
    """Returns the dataclass field of a `Setting` with this help; `rest` are its other attributes."""
    return dataclasses.field(default=default, metadata={_KEY: Setting(text, unit, **rest)})


def one_of(default: Any, kinds: Mapping[str, type["Settings"]], text: str, **rest: Any) -> Any:
    """Returns the dataclass field of a setting that is an instance of one of several `Settings` classes, or its name.

    `kinds` are the classes by name; each has its name as the class attribute `name`.
    """
    return dataclasses.field(default=default, metadata={_KEY: Setting(text, kinds=kinds, **rest)})


def same_as(settings: type["Settings"], name: str) -> Any:
    """Returns the dataclass field of a setting that `settings` declares as its field `name`: one flag sets both."""
    field = settings.__dataclass_fields__[name]
    declared = dataclasses.replace(field.metadata[_KEY], flag=flag_of(field))
    return dataclasses.field(default=field.default, metadata={_KEY: declared})


def declared(field: dataclasses.Field[Any]) -> Any:
    """Returns the `Setting` of a dataclass field; None if it is not a setting."""
    return field.metadata.get(_KEY)


def flag_of(field: dataclasses.Field[Any]) -> Any:
    """Returns the flag of a dataclass field that is a setting; None if it has none."""
    return field.name if declared(field).flag == "" else declared(field).flag


def spelled_flag(field: dataclasses.Field[Any]) -> str:
    """Returns how the command line names a setting: by its flag, or as `optimizer_params=beta1`."""
    found = declared(field)
    return f"{found.params_flag}={field.name}" if is_param(field) else flag_of(field) or field.name


def is_param(field: dataclasses.Field[Any]) -> bool:
    """Returns whether the command line sets this setting of a kind by a `params_flag`."""
    found = declared(field)
    return bool(found.params_flag) and found.kinds is None


class SettingError(UserError):
    """A setting that is refused.

    Args:
      text: the message as Python words it, with `name=value`.
      by_flags: the message as the command line words it, with `--flag=value`.
    """

    def __init__(self, text: str, by_flags: str) -> None:
        super().__init__(text)
        self.by_flags = by_flags


@dataclasses.dataclass(frozen=True)
class _Spelled:
    """A setting in a message, see `Settings.refused`; `dashes` are "--" on the command line and "" in Python."""

    dashes: str
    name: str
    value: object

    def __format__(self, spec: str) -> str:
        if self.dashes and isinstance(self.value, bool):
            return f"--{'' if self.value or spec else 'no'}{self.name}"
        return f"{self.dashes}{self.name}" if spec else f"{self.dashes}{self.name}={_text(self.value)}"


def _text(value: Any) -> str:
    """Returns a value as a user writes it, on the command line or as an argument."""
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    if dataclasses.is_dataclass(value):  # One of several kinds, which have names.
        kind: Any = value
        return kind.name
    return f"{value:g}" if isinstance(value, float) else masked(str(value))


class Settings:
    """The base of frozen dataclasses of settings: a wrong value is refused when one is made.

    A class says the title of its flags in the help by `class Reading(Settings, title="Data")`.
    """

    title: typing.ClassVar[str] = ""
    __dataclass_fields__: typing.ClassVar[dict[str, dataclasses.Field[Any]]]  # Every subclass is a dataclass.

    def __init_subclass__(cls, title: str = "", **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if title:
            cls.title = title

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            found = declared(field)
            if found is None:
                continue
            value = getattr(self, field.name)
            if found.kinds is not None:
                self._choose(field.name, found, value)
                continue
            if isinstance(value, list) and typing.get_origin(field.type) is tuple:
                object.__setattr__(self, field.name, tuple(value))
                value = tuple(value)
            problem = found.problem(field.type, field.default, value)
            if problem:
                raise self.refused(f"{{{field.name}}}{problem}")

    def _choose(self, name: str, found: Setting, value: Any) -> None:
        """Makes an instance of what is given by name."""
        if type(value) in found.kinds.values():
            return
        if not isinstance(value, str) or value not in found.kinds:
            raise self.refused(f"{{{name}}}{found.unknown_kind(value)}")
        object.__setattr__(self, name, found.kinds[value]())

    def refused(self, text: str, **others: object) -> SettingError:
        """Returns the `SettingError` of these settings.

        Args:
          text: the message; `{name}` in it stands for a setting and its value, `{name:name}` for the setting alone.
          **others: what else stands in the text by its name.
        """
        fields = [field for field in dataclasses.fields(self) if declared(field)]
        return _refused(text, {each.name: (spelled_flag(each), getattr(self, each.name)) for each in fields}, others)


def refused(text: str, settings: Mapping[str, object], **others: object) -> SettingError:
    """Returns the `SettingError` of settings that are arguments of a function; each has a flag of its name."""
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
