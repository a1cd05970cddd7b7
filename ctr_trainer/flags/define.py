"""From the fields of a frozen dataclass to absl flags, and back."""

import dataclasses
import math

from absl import flags as absl_flags

from ctr_trainer.messages.errors import UserError

_NUMBERS = {tuple[int, ...]: (int, "integers"), tuple[float, ...]: (float, "numbers")}


def flag(default, text, unit="", choices=None, minimum=None):
    """-> the dataclass field of a flag; its type annotation is the flag's type.

    Args:
      default: its value where the flag is not given.
      text: of the help.
      unit: of the value, for the help.
      choices: the values accepted; of a `float | str` those besides numbers; None for any.
      minimum: the smallest value accepted; None for any.
    """
    metadata = {"help": text, "unit": unit, "choices": choices, "minimum": minimum}
    return dataclasses.field(default=default, metadata=metadata)


def define(groups):
    """-> absl FlagValues with the flags of the groups."""
    values = absl_flags.FlagValues()
    for group in groups:
        for field in dataclasses.fields(group):
            _define(field, group.__doc__, values)
    return values


def read(group, values):
    """-> the group's dataclass, from parsed flags."""
    taken = {}
    for field in dataclasses.fields(group):
        value = values[field.name].value
        if field.type in _NUMBERS:
            value = _numbers(field.name, value, *_NUMBERS[field.type])
        elif field.type == float | str:
            value = _number_or_choice(field, value)
        elif field.type == tuple[str, ...]:
            value = tuple(part for text in value for part in text.split(",") if part)
        taken[field.name] = value
    return group(**taken)


def require(group, *names):
    """Raises UserError where one of the named flags of a group's instance has no value."""
    for name in names:
        if not getattr(group, name):
            raise UserError(f"--{name} is missing: {group.__dataclass_fields__[name].metadata['help']}")


def _numbers(name, texts, kind, expected):
    try:
        return tuple(kind(text) for text in texts)
    except ValueError:
        raise UserError(f"--{name}={','.join(texts)}: expected {expected}, comma separated") from None


def _number_or_choice(field, text):
    choices, minimum = field.metadata["choices"], field.metadata["minimum"]
    if text in choices:
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not minimum <= value < math.inf:
        raise UserError(f"--{field.name}={text}: expected {', '.join(choices)} or a number of at least {minimum:g}")
    return value


def _define(field, group, values):
    name, default, metadata = field.name, field.default, field.metadata
    unit = f" [{metadata['unit']}]" if metadata["unit"] else ""
    common = dict(help=metadata["help"] + unit, flag_values=values, module_name=group)
    if field.type == float | str:
        absl_flags.DEFINE_string(name, str(default), **common)
    elif metadata["choices"]:
        absl_flags.DEFINE_enum(name, default or None, list(metadata["choices"]), **common)
    elif field.type is bool:
        absl_flags.DEFINE_bool(name, default, **common)
    elif field.type in (int, int | None):
        absl_flags.DEFINE_integer(name, default, lower_bound=metadata["minimum"], **common)
    elif field.type in (float, float | None):
        absl_flags.DEFINE_float(name, default, lower_bound=metadata["minimum"], **common)
    elif field.type in _NUMBERS:
        absl_flags.DEFINE_list(name, [str(part) for part in default], **common)
    elif field.type == tuple[str, ...]:  # Adds up where the flag is given more than once.
        absl_flags.DEFINE_multi_string(name, list(default), **common)
    else:
        absl_flags.DEFINE_string(name, default, **common)
