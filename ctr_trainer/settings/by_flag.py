"""Converts `Settings` to values by flag and back, for the command line, `flags.json` and the workers of a job."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ctr_trainer.settings.setting import Setting, SettingError, Settings, declared, flag_of, is_param, spelled_flag
from ctr_trainer.system.messages.errors import UserError

S = TypeVar("S", bound=Settings)


@dataclasses.dataclass(frozen=True)
class Flag:
    """A setting on the command line.

    Attributes:
      name: name without dashes.
      kind: type of the value.
      default: default value; None if several kinds of a setting share the flag with different defaults.
      defaults: in that case, the default by the name of the kind.
      of_some_kinds: whether only some kinds of a setting have this flag, such as `--embedding_initial_accumulator`.
    """

    name: str
    kind: Any
    default: Any
    setting: Setting
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    of_some_kinds: bool = False


def sections(settings: Settings) -> list[tuple[str, list[Flag]]]:
    """Returns (title, flags) of `Settings` and of nested `Settings`, in order; the values are the defaults."""
    own: list[Flag] = []
    inner: list[tuple[str, list[Flag]]] = []
    for field in dataclasses.fields(settings):
        found, value = declared(field), getattr(settings, field.name)
        if found is None:
            inner += sections(value) if _is_settings(field.type) else []
        elif found.kinds is not None:
            choice = dataclasses.replace(found, choices=tuple(found.kinds), kinds=None)
            chosen = Flag(flag_of(field), str, value.name, choice)
            inner.append((type(value).title, [chosen, *_of_kinds(found), *_params_of_kinds(found)]))
        elif flag_of(field):
            own.append(Flag(flag_of(field), field.type, value, found))
    return [(settings.title, own), *inner] if own else inner


def _of_kinds(choice: Setting) -> list[Flag]:
    """Returns the flags of all kinds of a setting; a flag that several kinds share occurs once."""
    having: dict[str, list[tuple[str, dataclasses.Field[Any]]]] = {}
    for name, kind in choice.kinds.items():
        for field in dataclasses.fields(kind):
            if not is_param(field):
                having.setdefault(flag_of(field), []).append((name, field))
    flags = []
    for name, found in having.items():
        field = found[0][1]
        of = () if len(found) == len(choice.kinds) else tuple(kind for kind, _ in found)
        defaults = {kind: field.default for kind, field in found}
        differ = len(set(defaults.values())) > 1
        setting = dataclasses.replace(declared(field), of=of)
        default = None if differ else field.default
        flags.append(Flag(name, field.type, default, setting, defaults if differ else {}, of_some_kinds=bool(of)))
    return flags


def _params_of_kinds(choice: Setting) -> list[Flag]:
    """Returns the flag for the settings of kinds that have no flag of their own; [] if there are no such settings.

    Its help lists these settings, each with its default and its kinds.
    """
    having: dict[str, list[str]] = {}
    for name, kind in choice.kinds.items():
        for field in filter(is_param, dataclasses.fields(kind)):
            having.setdefault(f"{field.name}={field.default:g}", []).append(name)
    if not having:
        return []
    text = ", ".join(f"{param} ({', '.join(kinds)})" for param, kinds in having.items())
    help = f"settings of the optimizer as name=value, here with their defaults: {text}"
    return [Flag(choice.params_flag, tuple[str, ...], (), Setting(help))]


def replaced(settings: S, values: Mapping[str, Any]) -> S:
    """Returns `Settings` with other values, given by flag; flags of other settings are ignored.

    If only some kinds of a setting have a flag, None means that the flag is not given.

    Raises:
      UserError: a setting is refused; the message names flags.
    """
    taken = {}
    for field in dataclasses.fields(settings):
        found, value = declared(field), getattr(settings, field.name)
        if found is None:
            taken[field.name] = replaced(value, values) if _is_settings(field.type) else value
        elif found.kinds is not None:
            taken[field.name] = _of_kind(field, value, values)
        else:
            taken[field.name] = values.get(flag_of(field), value)
    with refusing_by_flags():
        return type(settings)(**taken)


def _of_kind(field: dataclasses.Field[Any], old: Any, values: Mapping[str, Any]) -> Any:
    """Returns the settings of the chosen kind. If it is the current kind, settings that are not given stay."""
    flag, found = flag_of(field), declared(field)
    name = values.get(flag, old.name)
    if name not in found.kinds:
        raise UserError(f"--{flag}={name}{found.unknown_kind(name)}")
    kind = found.kinds[name]
    fields = dataclasses.fields(kind)
    names = ", ".join(f"--{spelled_flag(each)}" for each in fields)
    having = f"it has {names}" if names else "it has no setting"
    own = {flag_of(each): each.name for each in fields}
    for other in _of_kinds(found):
        value = values.get(other.name)
        if other.name not in own and value is not None:
            raise UserError(f"--{flag}={name} has no --{other.name}, which is set to {value:g}; {having}")
    given = vars(old) if name == old.name else {}
    given = given | {own[each]: values[each] for each in own if values.get(each) is not None}
    params = {each.name for each in fields if is_param(each)}
    for text in values.get(found.params_flag) or ():
        param, _, number = text.partition("=")
        if param not in params:
            raise UserError(f"--{flag}={name} has no --{found.params_flag}={param}, which is set to {number}; {having}")
        try:
            given[param] = float(number)
        except ValueError:
            raise UserError(f"--{found.params_flag}={text}: expected {param}=NUMBER") from None
    with refusing_by_flags():
        return kind(**given)


@contextlib.contextmanager
def refusing_by_flags() -> Iterator[None]:
    """Converts a `SettingError` from the block into a UserError whose message names flags."""
    try:
        yield
    except SettingError as error:
        raise UserError(error.by_flags) from error


def by_flag(settings: Settings) -> dict[str, Any]:
    """Returns the values of `Settings` and of nested `Settings` by flag; `replaced` is the inverse.

    An optimizer setting without a flag of its own also has a key, such as `adam_beta1`.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        found, value = declared(field), getattr(settings, field.name)
        if found is None:
            values |= by_flag(value) if _is_settings(field.type) else {}
        elif found.kinds is not None:
            values |= {flag_of(field): value.name, **by_flag(value)}
        elif flag_of(field):
            values[flag_of(field)] = value
    return values


def alike(settings: Settings) -> dict[str, str]:
    """Returns, by flag and as text, the values that must be equal on all ranks of a job."""
    flags = {each.name: each for _, found in sections(settings) for each in found}
    values = by_flag(settings)
    return {name: str(value) for name, value in values.items() if name not in flags or flags[name].setting.alike}


def changed(settings: Settings, usual: Settings | None = None) -> dict[str, Any]:
    """Returns, by flag, the values that differ from their defaults, as the command line accepts them.

    The defaults are the values of `usual` if it is given, else those of the class.
    """
    usual = usual or type(settings)()
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        found, value, default = declared(field), getattr(settings, field.name), getattr(usual, field.name)
        if found is None:
            values |= changed(value, default) if _is_settings(field.type) else {}
        elif found.kinds is not None:
            is_other = value.name != default.name
            values |= {
                **({flag_of(field): value.name} if is_other else {}),
                **changed(value, None if is_other else default),
            }
        elif value != default and is_param(field):
            values[found.params_flag] = (*values.get(found.params_flag, ()), f"{field.name}={value!r}")
        elif flag_of(field) and value != default:
            values[flag_of(field)] = value
    return values


def require(settings: Settings, *names: str) -> None:
    """Raises UserError if one of the named settings has no value."""
    for name in names:
        if not getattr(settings, name):
            field = settings.__dataclass_fields__[name]
            raise UserError(f"--{flag_of(field)} is missing: {declared(field).help}")


def _is_settings(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Settings)
