"""The search space: a TOML file with a range or choices for each flag of `train` that a search varies.

[learning_rate]
low = 1e-4
high = 1e-2
log = true                  # Search the range on a logarithmic scale.
start = 1e-3                # Optional: the value in the second trial.

[dropout]
low = 0.0
high = 0.5
step = 0.1

[hidden_units]
choices = ["128,64", "400,400,400"]

["model_params=cross_layers"]
low = 1                     # The values are whole numbers if both bounds are.
high = 4

[[unless_given]]            # Set in all trials except the first, unless the user sets one of these flags.
lr_schedule = "plateau"
"lr_schedule_params=decay_rate" = 0.1
"lr_schedule_params=patience" = 2
"""

import dataclasses
import math
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from ctr_trainer.features.toml import tomllib, typed
from ctr_trainer.settings.by_flag import text_of
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError

DEFAULT = pathlib.Path(__file__).with_name("default.toml")
UNLESS_GIVEN = "unless_given"
_KEYS = {"low": object, "high": object, "log": bool, "step": object, "choices": list, "start": object}
_SCALARS = (str, bool, int, float)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A flag that trials vary, or `model_params=NAME`: a range, whose bounds are inclusive, or choices; see above."""

    flag: str
    low: float | None = None
    high: float | None = None
    log: bool = False
    step: float | None = None
    choices: tuple[str, ...] = ()
    start: Any = None

    @property
    def is_whole(self) -> bool:
        """Whether the values are whole numbers."""
        return all(isinstance(each, int) for each in (self.low, self.high)) and not isinstance(self.step, float)

    def suggest(self, trial: Any) -> str:
        """Returns the text of the value that Optuna suggests for a trial."""
        if self.choices:
            return trial.suggest_categorical(self.flag, self.choices)
        if self.is_whole:
            return str(trial.suggest_int(self.flag, self.low, self.high, step=self.step or 1, log=self.log))
        return f"{trial.suggest_float(self.flag, self.low, self.high, step=self.step, log=self.log):.6g}"

    def value(self, text: Any) -> Any:
        """Converts a text to the parameter's value in Optuna."""
        if self.choices:
            return str(text)
        return int(text) if self.is_whole else float(text)

    def widened(self, own: str) -> "Parameter":
        """Returns the parameter with its choices or range extended to include the user's value.

        A logarithmic range is not extended to 0 or below, and a range with steps is not extended.
        """
        if self.choices:
            return self if own in self.choices else dataclasses.replace(self, choices=(own, *self.choices))
        value = self.value(own)
        assert self.low is not None and self.high is not None
        if self.step or (self.log and value <= 0):
            return self
        return dataclasses.replace(self, low=min(self.low, value), high=max(self.high, value))

    def holds(self, own: str) -> bool:
        """Whether a text is one of the values."""
        if self.choices:
            return own in self.choices
        assert self.low is not None and self.high is not None
        value = self.value(own)
        steps = (value - self.low) / self.step if self.step else 0.0
        return self.low <= value <= self.high and math.isclose(steps, round(steps), abs_tol=1e-6)


@dataclasses.dataclass(frozen=True)
class Space:
    """The parameters of a search, and groups of settings of all trials except the first, as texts by flag.

    A group applies if the user sets none of its flags.
    """

    parameters: tuple[Parameter, ...]
    unless_given: tuple[Mapping[str, str], ...] = ()

    def fixed(self, given: Collection[str]) -> dict[str, str]:
        """Returns the fixed settings of all trials except the first, by flag, if the user set the flags `given`."""
        groups = [group for group in self.unless_given if not set(group) & set(given)]
        return {flag: text for group in groups for flag, text in group.items()}


def load(path: str) -> Space:
    """Reads a space from a TOML file at a path or URL; "" for the default space.

    Raises UserError if the file is not a space; the message names the table and the key.
    """
    source = path or str(DEFAULT)
    try:
        values = tomllib.loads(path_of(source).read_bytes().decode())
    except OSError as error:
        raise UserError(f"space {source}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"space {source}: not TOML: {error}") from error
    groups = values.pop(UNLESS_GIVEN, [])
    if not isinstance(groups, list):
        raise UserError(f"space {source}: {UNLESS_GIVEN} must be a list of tables: write [[{UNLESS_GIVEN}]]")
    parameters = tuple(_parameter(flag, table, f"space {source}: [{flag}]") for flag, table in values.items())
    if not parameters:
        raise UserError(f"space {source}: no flag is varied: add a table, such as [learning_rate] with low and high")
    fixed = tuple(_texts(group, f"space {source}: [[{UNLESS_GIVEN}]]") for group in groups)
    return Space(parameters, fixed)


def _parameter(flag: str, table: Any, where: str) -> Parameter:
    if not isinstance(table, dict):
        raise UserError(f"{where}: {table!r} is not a table: write [{flag}] and below it low and high, or choices")
    values = typed(table, _KEYS, where)
    if "choices" in values:
        if extra := sorted({"low", "high", "log", "step"} & set(values)):
            raise UserError(f"{where}: choices exclude {', '.join(extra)}")
        choices = tuple(_text(each, f"{where}: choices") for each in values["choices"])
        if len(set(choices)) < max(len(choices), 2):
            raise UserError(f"{where}: choices are {', '.join(choices) or 'empty'}: give at least two different ones")
        start = values.get("start")
        parameter = Parameter(flag, choices=choices, start=start if start is None else _text(start, where))
    else:
        for key in ("low", "high", "step", "start"):
            number = values.get(key)
            if (key in ("low", "high") and number is None) or isinstance(number, str | bool | list | dict):
                raise UserError(f"{where}: {key!r} is {number!r}: give low and high as numbers, or choices")
        parameter = Parameter(flag, **values)
        assert parameter.low is not None and parameter.high is not None
        if not parameter.low < parameter.high or (parameter.log and parameter.low <= 0):
            limit = "above 0, " if parameter.log else ""
            raise UserError(f"{where}: low={parameter.low:g}, high={parameter.high:g}: low must be {limit}below high")
        if parameter.step is not None and (parameter.log or parameter.step <= 0):
            raise UserError(f"{where}: step={parameter.step:g}: must be above 0, and log excludes step")
    if parameter.start is not None and not parameter.holds(str(parameter.start)):
        raise UserError(f"{where}: start={parameter.start} is not one of the values")
    return parameter


def _texts(group: Any, where: str) -> dict[str, str]:
    if not isinstance(group, dict):
        raise UserError(f"{where}: {group!r} is not a table")
    return {flag: _text(value, f"{where}: {flag}") for flag, value in group.items()}


def _text(value: Any, where: str) -> str:
    if not isinstance(value, _SCALARS):
        raise UserError(f'{where}: {value!r} is neither a text nor a number; write a list as one text, like "128,64"')
    return text_of("", value)
