"""From `Settings` to absl flags, and back."""

import typing
from collections.abc import Iterable

from absl import flags as absl_flags

from ctr_trainer.messages.errors import UserError
from ctr_trainer.settings.by_flag import ALSO, FORMER, replaced, sections
from ctr_trainer.settings.setting import Settings

_NUMBERS = {tuple[int, ...]: (int, "integers"), tuple[float, ...]: (float, "numbers")}


def flags_of(groups):
    """-> dict of the title of each section of the help and its list of `Flag`s; a flag stands in the first that has it.

    Args:
      groups: `Settings` classes.
    """
    found, seen = {}, set()
    for title, flags in (section for group in groups for section in sections(group())):
        found.setdefault(title, []).extend(flag for flag in flags if flag.name not in seen)
        seen |= {flag.name for flag in flags}
    return found


def define(groups):
    """-> absl FlagValues with the flags of the groups, by all of their names."""
    values = absl_flags.FlagValues()
    for title, flags in flags_of(groups).items():
        for flag in flags:
            _define(flag, title, values)
    for other, name in {**FORMER, **ALSO}.items():
        if name in values:
            absl_flags.DEFINE_alias(other, name, values)
    return values


def parsed(groups: Iterable[type[Settings]], values: absl_flags.FlagValues) -> dict[str, typing.Any]:
    """Returns the values of the groups' flags, by flag, from parsed FlagValues.

    A flag that only some kinds of a setting have, such as `--momentum`, is None unless the user gave it, so that
    `replaced` can refuse it for a kind that lacks it, whatever its value.

    Raises:
      UserError: a text does not have its flag's type.
    """
    found = (flag for flags in flags_of(groups).values() for flag in flags)
    return {
        flag.name: None
        if flag.of_some_kinds and not values[flag.name].present
        else _value(flag, values[flag.name].value)
        for flag in found
    }


def read(group, values):
    """-> an instance of a group, from parsed FlagValues.

    Raises:
      UserError: a setting is refused, by the name of its flag.
    """
    return replaced(group(), parsed([group], values))


def _value(flag, value):
    if flag.kind in _NUMBERS:
        kind, expected = _NUMBERS[flag.kind]
        try:
            return tuple(map(kind, value))
        except ValueError:
            raise UserError(f"--{flag.name}={','.join(value)}: expected {expected}, comma separated") from None
    if flag.kind == tuple[str, ...]:
        return tuple(part for text in value for part in text.split(",") if part)
    if flag.kind == float | str:
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _define(flag, title, values):
    name, default = flag.name, flag.default
    common = dict(help=help_text(flag), flag_values=values, module_name=title)
    kinds = typing.get_args(flag.kind) or (flag.kind,)
    if flag.kind in _NUMBERS:
        absl_flags.DEFINE_list(name, [str(part) for part in default], **common)
    elif flag.kind == tuple[str, ...]:  # Adds up where the flag is given more than once.
        absl_flags.DEFINE_multi_string(name, list(default), **common)
    elif str in kinds:
        absl_flags.DEFINE_string(name, None if default is None else str(default), **common)
    elif bool in kinds:
        absl_flags.DEFINE_bool(name, default, **common)
    elif int in kinds:
        absl_flags.DEFINE_integer(name, default, **common)
    else:
        absl_flags.DEFINE_float(name, default, **common)


def help_text(flag):
    """-> what the help says of a `Flag`: what it is, for which choices, in what unit, of which values."""
    setting = flag.setting
    of = f"; of {', '.join(setting.of)}" if setting.of else ""
    example = f", as {','.join(f'{part:g}' if isinstance(part, float) else str(part) for part in setting.example)}"
    unit = f" [{setting.unit}]" if setting.unit else ""
    choices = f" ({', '.join(setting.choices)})" if setting.choices else ""
    return f"{setting.help}{example if setting.example else ''}{of}{unit}{choices}"


def default_text(flag):
    """-> what the help says of a `Flag`'s default."""
    if flag.defaults:
        kinds = {}
        for kind, value in flag.defaults.items():
            kinds.setdefault(value, []).append(kind)
        usual = max(kinds, key=lambda value: len(kinds[value]))
        others = (f"{value:g} of {' and '.join(of)}" for value, of in kinds.items() if value != usual)
        return f"{', '.join(others)}, else {usual:g}"
    if flag.default in (None, "", ()):
        return "none"
    if isinstance(flag.default, tuple):
        return ",".join(map(str, flag.default))
    if isinstance(flag.default, bool):
        return str(flag.default).lower()
    return f"{flag.default:g}" if isinstance(flag.default, float) else str(flag.default)
