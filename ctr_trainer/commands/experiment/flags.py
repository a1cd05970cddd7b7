"""Converts `Settings` to absl flags, and parsed flags to `Settings`.

Flags that only one command uses are in the module of that command.
"""

import types
from collections.abc import Iterable
from typing import Any

from absl import flags as absl_flags

from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.experiment.recipes import DECAY_RATE, NAME, PATIENCE, PLATEAU, Facts, choices
from ctr_trainer.settings.by_flag import Flag, named, read_text, replaced, sections, text_of
from ctr_trainer.settings.command_flags import ExportFlags, TrainedModelFlags
from ctr_trainer.settings.setting import Settings
from ctr_trainer.settings.training_configs import EvaluationConfig
from ctr_trainer.system.messages.errors import UserError

Groups = tuple[type[Settings], ...]

# Groups of `train`.
TRAINING: Groups = (Experiment, EvaluationConfig, ExportFlags)
# Groups whose flags a flagfile of an experiment may contain.
EXPERIMENT: Groups = (*TRAINING, TrainedModelFlags)
# The flags of commands that use a trained model, and the further flags of those that also read data.
OF_MODELS = ("model_dir", "model", "checkpoint", "threads", "stall_timeout", "log_format", "log_ranks")
OF_DATA = ("eval_data", "feature_spec", "batch_size", "num_readers", "prefetch_batches")


def flags_of(groups: Iterable[type[Settings]]) -> dict[str, list[Flag]]:
    """Returns the flags of `Settings` classes by section title; each flag is only in the first section that has it."""
    found: dict[str, list[Flag]] = {}
    seen: set[str] = set()
    for title, flags in (section for group in groups for section in sections(group())):
        found.setdefault(title, []).extend(flag for flag in flags if flag.name not in seen)
        seen |= {flag.name for flag in flags}
    return found


def shown(command: types.ModuleType, is_full: bool) -> dict[str, list[Flag]]:
    """Returns the flags that a command's help shows, by section title.

    These are the flags of its GROUPS. If the command has TAKES, they are limited to the flags named there; if it has
    MAIN, the short help is limited to the flags named there.
    """
    names = getattr(command, "TAKES", None) or (None if is_full else getattr(command, "MAIN", None))
    found = flags_of(command.GROUPS)
    if names is None:
        return found
    chosen = {title: [flag for flag in flags if flag.name in names] for title, flags in found.items()}
    return {title: flags for title, flags in chosen.items() if flags}


def define(groups: Iterable[type[Settings]]) -> absl_flags.FlagValues:
    """Returns absl FlagValues with the flags of the groups."""
    values = absl_flags.FlagValues()
    for title, flags in flags_of(groups).items():
        for flag in flags:
            _define(flag, title, values)
    return values


def parsed(groups: Iterable[type[Settings]], values: absl_flags.FlagValues) -> dict[str, Any]:
    """Returns the values of the groups' flags, by flag, from parsed FlagValues; see `by_flag` for the keys.

    Raises:
      UserError: a text does not have the type of its flag.
    """
    found: dict[str, Any] = {}
    for flag in (flag for flags in flags_of(groups).values() for flag in flags):
        value = _value(flag, values[flag.name].value)
        found |= named(flag.name, value) if flag.takes_params else {flag.name: value}
    # Among the schedules that the recipe chooses, only the plateau has these settings.
    if found.get("recipe") == NAME and not values["lr_schedule"].present and {PATIENCE, DECAY_RATE} & {*found}:
        found = {**found, **PLATEAU, **{name: found[name] for name in (PATIENCE, DECAY_RATE) if name in found}}
    return found


def parse(groups: Iterable[type[Settings]], arguments: Iterable[str]) -> list[Any]:
    """Returns an instance of each group, from flags as on a command line; see `parse_given`."""
    return parse_given(tuple(groups), arguments)[1]


def parse_given(groups: Groups, arguments: Iterable[str]) -> tuple[frozenset[str], list[Any]]:
    """Returns (the names of the given flags, an instance of each group), from flags as on a command line.

    Raises:
      UserError: a flag or a setting is refused, or an argument is no flag.
    """
    values = define(groups)
    try:
        rest = values(["", *arguments])[1:]
    except absl_flags.Error as error:
        raise UserError(str(error)) from None
    if rest:
        raise UserError(f"expected flags, not {' '.join(rest)}")
    found = parsed(groups, values)
    return given(values, found), [replaced(group(), found) for group in groups]


def given(values: absl_flags.FlagValues, found: Iterable[str]) -> frozenset[str]:
    """Returns the names of the given flags: those of `values` that are present, and `FLAG=name` of the keys `found`."""
    return frozenset(flag for flag in {*values, *found} if "=" in flag or values[flag].present)


def _value(flag: Flag, value: Any) -> Any:
    if flag.kind == tuple[str, ...]:
        return tuple(part for text in value for part in text.split(",") if part)
    if value is None:
        return flag.default
    return read_text(flag.name, flag.kind, value, ",") if isinstance(value, str) else value


def _define(flag: Flag, title: str, values: absl_flags.FlagValues) -> None:
    common: dict[str, Any] = dict(help=help_text(flag), flag_values=values, module_name=title)
    if flag.kind is bool:
        absl_flags.DEFINE_bool(flag.name, flag.default, **common)
    elif flag.kind == tuple[str, ...]:  # Repeated flags add values.
        absl_flags.DEFINE_multi_string(flag.name, list(flag.default), **common)
    else:
        absl_flags.DEFINE_string(flag.name, None, **common)


def help_text(flag: Flag) -> str:
    """Returns the help of a flag: its description, example, kinds, unit and choices."""
    setting = flag.setting
    example = f"; example: {text_of(flag.name, setting.example)}" if setting.example else ""
    of = f"; only for {', '.join(setting.of)}" if setting.of else ""
    unit = f" [{setting.unit}]" if setting.unit else ""
    choices = f" ({', '.join(setting.choices)})" if setting.choices else ""
    return f"{setting.help}{example}{of}{unit}{choices}"


def default_text(flag: Flag, recipe: str = "none") -> str:
    """Returns the text of a flag's default in the help of a command with this default recipe."""
    text = "none" if flag.default is None else text_of(flag.name, flag.default) or "none"
    facts = [Facts(rows=1, has_validation=seen) for seen in (True, False)]
    if recipe != NAME or flag.name not in {name.partition("=")[0] for each in facts for name in choices(each, {})[0]}:
        return text
    return f"chosen by --recipe={NAME}; {text} with --recipe=none"
