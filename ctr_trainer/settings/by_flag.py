"""Converts `Settings` to values by flag and back, for the command line, `flags.json` and the workers of a job."""

import contextlib
import dataclasses
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ctr_trainer.settings.setting import Setting, SettingError, Settings, declared, flag_of
from ctr_trainer.system.messages.errors import UserError

S = TypeVar("S", bound=Settings)
_BOOLS = {"true": True, "1": True, "false": False, "0": False}
# What `read_text` expects, by type.
EXPECTED: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    tuple[int, ...]: "integers as in 128:64",
    tuple[float, ...]: "numbers as in 0.5:2",
    tuple[str, ...]: "names as in a:b",
}


@dataclasses.dataclass(frozen=True)
class Flag:
    """A setting on the command line; `name` has no dashes, and `kind` is the type of the value.

    If `takes_params`, the flag takes several settings as `name=value`; `by_flag` has them as `FLAG=name`.
    """

    name: str
    kind: Any
    default: Any
    setting: Setting
    takes_params: bool = False


def _parts(settings: Settings) -> Iterator[tuple[str, Setting | None, Any, Any]]:
    """Yields (name, `Setting`, flag or None, value) of each setting; of inner `Settings` (name, None, None, value)."""
    for field in dataclasses.fields(settings):
        found, value = declared(field), getattr(settings, field.name)
        if found is not None or isinstance(value, Settings):
            yield field.name, found, found and flag_of(type(settings), field), value


def sections(settings: Settings) -> list[tuple[str, list[Flag]]]:
    """Returns (title, flags) of `Settings` and of nested `Settings`, in order; the values are the defaults."""
    own: list[Flag] = []
    inner: list[tuple[str, list[Flag]]] = []
    for name, found, flag, value in _parts(settings):
        if found is None:
            inner += sections(value)
        elif found.kinds is not None:
            chosen = Flag(flag, str, value.name, dataclasses.replace(found, choices=tuple(found.kinds), kinds=None))
            inner.append((type(value).title, [chosen, *_params(found.kinds)]))
        elif flag and "=" not in flag:
            own.append(Flag(flag, settings.__dataclass_fields__[name].type, value, found))
    if settings.params_flag:
        own += _params({"": type(settings)})
    return [(settings.title, own), *inner] if own else inner


def _params(kinds: Mapping[str, type[Settings]]) -> list[Flag]:
    """Returns the flag for the settings of all kinds that are given as `name=value`; [] if there are none."""
    having: dict[str, tuple[str, list[str]]] = {}
    for name, kind in kinds.items():
        for field in dataclasses.fields(kind):
            flag = f"{kind.params_flag}={field.name}"
            if flag_of(kind, field) == flag:
                default = text_of(flag, field.default) or "none"
                of = having.setdefault(f"{field.name}={default}", (declared(field).help, []))[1]
                of += declared(field).of or filter(None, [name])
    if not having:
        return []
    texts = (f"{param} ({', '.join(of)}): {text}" for param, (text, of) in having.items())
    help = f"settings as name=value, here with their defaults. {'; '.join(texts)}"
    return [Flag(next(iter(kinds.values())).params_flag, tuple[str, ...], (), Setting(help), takes_params=True)]


def replaced(settings: S, values: Mapping[str, Any]) -> S:
    """Returns `Settings` with other values, given by flag; flags of other settings are ignored.

    Raises UserError: a setting is refused; the message names flags.
    """
    taken = {}
    for name, found, flag, value in _parts(settings):
        if found is None:
            taken[name] = replaced(value, values)
        elif found.kinds is not None:
            taken[name] = _of_kind(flag, found, value, values)
        else:
            taken[name] = values.get(flag, value)
    if settings.params_flag:
        taken |= _given_params(type(settings), values, f"--{settings.params_flag}")
    with refusing_by_flags():
        return dataclasses.replace(settings, **taken)


def _of_kind(flag: str, found: Setting, old: Any, values: Mapping[str, Any]) -> Any:
    """Returns the settings of the chosen kind. If it is the current kind, settings that are not given stay."""
    name = values.get(flag, old.name)
    if name not in found.kinds:
        raise UserError(f"--{flag}={name}: choose one of {', '.join(found.kinds)}")
    kind = found.kinds[name]
    kept = vars(old) if name == old.name else {}
    with refusing_by_flags():
        return kind(**{**kept, **_given_params(kind, values, f"--{flag}={name}")})


def _given_params(kind: type[Settings], values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Returns the settings of `kind` that are given as `FLAG=name`, and refuses those that it does not have."""
    known = {flag_of(kind, field): field for field in dataclasses.fields(kind)}
    given = {}
    for name, value in values.items():
        if not name.startswith(f"{kind.params_flag}="):
            continue
        if name not in known:
            having = ", ".join(f"--{each}" for each in known if each and "=" in each)
            raise UserError(f"{what} has no --{name}, which is set to {value}; it has {having or 'no setting'}")
        field = known[name]
        given[field.name] = read_text(name, field.type, value) if isinstance(value, str) else value
    return given


def named(flag: str, texts: Iterable[str]) -> dict[str, str]:
    """Returns the values of the texts `name=value` of a flag, by `FLAG=name`; the last one of a name counts."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--{flag}={text}: expected name=value")
        found[f"{flag}={name.strip()}"] = value.strip()
    return found


def read_text(flag: str, kind: Any, text: str, separator: str = ":") -> Any:
    """Returns the value of the text of a flag, or of `FLAG=name`, whose tuples are written with `:`."""
    kinds = typing.get_args(kind) or (kind,)
    number = next((each for each in kinds if each in (int, float)), str)
    try:
        if kind is bool:
            return _BOOLS[text.lower()]
        if typing.get_origin(kind) is tuple:
            return tuple(number(part) for part in text.split(separator) if part)
        return number(text)
    except (KeyError, ValueError):
        if str in kinds:
            return text
        expected = EXPECTED.get(kind) or EXPECTED[number]
        raise UserError(f"--{flag}={text}: expected {expected.replace(':', separator)}") from None


def text_of(flag: str, value: Any) -> str:
    """Returns the text of a value after `--flag=`, as `read_text` takes it."""
    if isinstance(value, tuple | list):
        return (":" if "=" in flag else ",").join(text_of(flag, part) for part in value)
    if isinstance(value, bool):
        return str(value).lower()
    # float(): that of NumPy is one too, and writes itself as np.float64(0.5).
    return repr(float(value)).removesuffix(".0") if isinstance(value, float) else str(value)


@contextlib.contextmanager
def refusing_by_flags() -> Iterator[None]:
    """Converts a `SettingError` from the block into a UserError whose message names flags."""
    try:
        yield
    except SettingError as error:
        raise UserError(error.by_flags) from error


def by_flag(settings: Settings) -> dict[str, Any]:
    """Returns the values of `Settings` and of nested `Settings` by flag; `replaced` is the inverse.

    A setting that is given as `name=value` has the key `FLAG=name`, such as `optimizer_params=beta1`.
    """
    values: dict[str, Any] = {}
    for _, found, flag, value in _parts(settings):
        if found is None:
            values |= by_flag(value)
        elif found.kinds is not None:
            values |= {flag: value.name, **by_flag(value)}
        elif flag:
            values[flag] = value
    return values


def alike(settings: Settings) -> dict[str, str]:
    """Returns, by flag and as text, the values that must be equal on all ranks of a job."""
    flags = {each.name: each for _, found in sections(settings) for each in found}
    values = by_flag(settings)
    return {name: str(value) for name, value in values.items() if name not in flags or flags[name].setting.alike}


def require(settings: Settings, *names: str) -> None:
    """Raises UserError if one of the named settings has no value."""
    for name in names:
        if not getattr(settings, name):
            field = settings.__dataclass_fields__[name]
            raise UserError(f"--{flag_of(type(settings), field)} is missing: {declared(field).help}")
