"""`Settings` as values by flag, and back: what the command line, `flags.json` and a job's workers know them by."""

import dataclasses
import typing

from ctr_trainer.messages.errors import UserError
from ctr_trainer.settings.setting import Setting, SettingError, Settings, declared, flag_of

# Flags by the name of before, which the command line and earlier checkpoints have; it goes with the next release.
FORMER = {"initial_accumulator": "embedding_initial_accumulator"}
# Names that a flag has besides: that of `MonitoredTrainingSession`.
ALSO = {"save_checkpoint_secs": "save_checkpoints_secs"}


@dataclasses.dataclass(frozen=True)
class Flag:
    """A setting as the command line knows it.

    Attributes:
      name: without dashes.
      kind: the type of its value.
      default: None of a setting that several kinds have with different defaults.
      setting: `Setting`.
      defaults: of such a setting, the default by the name of the kind.
      of_some_kinds: whether only some kinds of a setting have this flag, as only some optimizers have `--momentum`.
    """

    name: str
    kind: typing.Any
    default: object
    setting: Setting
    defaults: dict = dataclasses.field(default_factory=dict)
    of_some_kinds: bool = False


def sections(settings):
    """-> list of (title, list of `Flag`) of `Settings` and of the `Settings` in them, in order.

    Args:
      settings: an instance; its values are the flags' defaults.
    """
    own, inner = [], []
    for field in dataclasses.fields(settings):
        found, value = declared(field), getattr(settings, field.name)
        if found is None:
            inner += sections(value) if _is_settings(field.type) else []
        elif found.kinds is not None:
            choice = dataclasses.replace(found, choices=tuple(found.kinds), kinds=None)
            inner.append((field.type.title, [Flag(flag_of(field), str, value.name, choice), *_of_kinds(found.kinds)]))
        elif flag_of(field):
            own.append(Flag(flag_of(field), field.type, value, found))
    return [(settings.title, own), *inner] if own else inner


def _of_kinds(kinds):
    """-> list of the `Flag`s of all kinds; one for those that have a flag in common."""
    having = {}
    for name, kind in kinds.items():
        for field in dataclasses.fields(kind):
            having.setdefault(flag_of(field), []).append((name, field))
    flags = []
    for name, found in having.items():
        field = found[0][1]
        of = () if len(found) == len(kinds) else tuple(kind for kind, _ in found)
        defaults = {kind: field.default for kind, field in found}
        differ = len(set(defaults.values())) > 1
        flags.append(
            Flag(
                name,
                field.type,
                None if differ else field.default,
                dataclasses.replace(declared(field), of=of),
                defaults if differ else {},
                of_some_kinds=bool(of),
            )
        )
    return flags


def replaced(settings, values):
    """-> `Settings` with other values.

    Args:
      settings: an instance.
      values: by flag; flags that it does not have are left out. None for a flag that only some kinds of a setting have
        means that it is not given.

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
    return refusing_by_flags(type(settings), taken)


def _of_kind(field, old, values):
    flag, found = flag_of(field), declared(field)
    kinds = found.kinds
    name = values.get(flag, old.name)
    if name not in kinds:
        raise UserError(f"--{flag}={name}{found.unknown_kind(name)}")
    own = {flag_of(each): each for each in dataclasses.fields(kinds[name])}
    for other in _of_kinds(kinds):
        value = values.get(other.name)
        if other.name not in own and value is not None:
            having = f"it has {', '.join(f'--{each}' for each in own)}" if own else "it has no setting"
            raise UserError(f"--{flag}={name} has no --{other.name}, which is set to {value:g}; {having}")
    given = vars(old) if name == old.name else {}
    given = given | {each.name: values[other] for other, each in own.items() if values.get(other) is not None}
    return refusing_by_flags(kinds[name], given)


def refusing_by_flags(group, taken):
    """-> an instance of a `Settings` class; a UserError of it names flags.

    Args:
      group: the class.
      taken: its fields by name.
    """
    try:
        return group(**taken)
    except SettingError as error:
        raise UserError(error.by_flags) from None


def by_flag(settings):
    """-> the values of `Settings` by flag, those of the `Settings` in them too; `replaced` gives the settings back."""
    values = {}
    for field in dataclasses.fields(settings):
        found, value = declared(field), getattr(settings, field.name)
        if found is None:
            values |= by_flag(value) if _is_settings(field.type) else {}
        elif found.kinds is not None:
            values |= {flag_of(field): value.name, **by_flag(value)}
        elif flag_of(field):
            values[flag_of(field)] = value
    return values


def alike(settings):
    """-> as `by_flag`, those values that all ranks of a job need alike, as text."""
    flags = {each.name: each for _, found in sections(settings) for each in found}
    return {name: str(value) for name, value in by_flag(settings).items() if flags[name].setting.alike}


def changed(settings, usual=None):
    """-> as `by_flag`, those values that are not at their defaults.

    Args:
      settings: an instance.
      usual: the instance whose values are the defaults; None for that of the class.
    """
    usual, values = usual or type(settings)(), {}
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
        elif flag_of(field) and value != default:
            values[flag_of(field)] = value
    return values


def by_names_of_now(values):
    """-> values by flag, which may be called as it was before, by the flags' names of now."""
    return {FORMER.get(name, name): value for name, value in values.items()}


def require(settings, *names):
    """Raises UserError where one of the named settings has no value."""
    for name in names:
        if not getattr(settings, name):
            field = settings.__dataclass_fields__[name]
            raise UserError(f"--{flag_of(field)} is missing: {declared(field).help}")


def _is_settings(kind):
    return isinstance(kind, type) and issubclass(kind, Settings)
