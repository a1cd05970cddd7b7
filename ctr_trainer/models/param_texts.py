"""Reads and writes a model's own hyperparameters as text: `--model_params=cross_layers=3,cross_rank=64`."""

import dataclasses
import inspect
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from ctr_trainer.models.params import SHARED, ModelParams
from ctr_trainer.models.registry import MODELS, find_model, summary
from ctr_trainer.settings import by_flag
from ctr_trainer.settings.by_flag import EXPECTED
from ctr_trainer.settings.setting import declared
from ctr_trainer.system.messages.errors import UserError


def describe_models() -> list[str]:
    """Returns a heading, and a line for each model with the first line of its module's docstring."""
    first = "Models (--model=NAME --help shows a model's own params):"
    return [first] + [f"  --model={name:<18}{summary(name)}" for name in MODELS]


def describe_params(name: str) -> list[str]:
    """Returns lines that list the model's own params."""
    first, *rest = accepted(find_model(name).params_class)
    return [f"{name} takes {first}:" if rest else f"{name} takes {first}", *rest]


def parse(model: str, params_class: type[ModelParams], texts: Sequence[str], shared: Mapping[str, Any]) -> ModelParams:
    """Returns the params of a model.

    Args:
      model: its name, for the errors.
      params_class: `ModelParams` or a subclass.
      texts: `name=value` each; the last of a name counts, so that a command line overrides its flagfile.
      shared: dict, the values of the fields that have flags of their own.

    Raises:
      UserError: an unknown name, a value of a wrong type, or one that the class refuses; says what is accepted.
    """
    try:
        own = dict(_parse(text, params_class) for text in texts)
        return params_class(**shared, **own)
    except UserError as error:
        problem = getattr(error, "by_flags", error)
        raise UserError(f"{problem}\n{model} takes " + "\n".join(accepted(params_class))) from None


def accepted(params_class: type[ModelParams]) -> list[str]:
    """Returns lines that list a class's own params with type, default and help."""
    fields, of_all = _own(params_class), _own(ModelParams)
    lines = ["--model_params=name=value,name=value of"]
    if fields.keys() == of_all.keys():
        lines = ["no --model_params of its own, only those of all models: name=value,name=value of"]
    for field in fields.values():
        kind = _kind(params_class, field)
        expected = "|".join(typing.get_args(kind)) if _is_choice(kind) else EXPECTED.get(kind, "a text")
        about = declared(field).help if declared(field) else help_of(params_class, field.name)
        text = f"{about} [{expected}]; default {by_flag.written(field.default) or 'none'}"
        lines.append(f"  {field.name:<26}{text}")
    return lines


def help_of(params_class: type[ModelParams], name: str) -> str:
    """Returns the text of a field under the Attributes of its class or a base class, in one line; "" if none."""
    for each in params_class.__mro__:
        text = inspect.cleandoc(each.__doc__ or "")
        found = re.search(rf"^ +{name}: (.+(?:\n {{4,}}.+)*)", text.partition("Attributes:")[2], re.MULTILINE)
        if found:
            return re.sub(r"\s+", " ", found.group(1)).rstrip(".")
    return ""


def written(name: str, value: Any) -> str:
    """Returns a setting as `parse` takes it."""
    return f"{name}={by_flag.written(value)}"


def _own(params_class: type[ModelParams]) -> dict[str, dataclasses.Field[Any]]:
    """Returns the fields without flags of their own, those of all models last."""
    fields = [field for field in dataclasses.fields(params_class) if field.name not in SHARED]
    of_all = {field.name for field in dataclasses.fields(ModelParams)}
    return {field.name: field for field in sorted(fields, key=lambda field: field.name in of_all)}


def _kind(params_class: type[ModelParams], field: dataclasses.Field[Any]) -> Any:
    return typing.get_type_hints(params_class)[field.name]


def _is_choice(kind: Any) -> bool:
    return typing.get_origin(kind) is typing.Literal


def _parse(text: str, params_class: type[ModelParams]) -> tuple[str, Any]:
    """Returns (name, value) of `name=value`."""
    name, equals, value = (part.strip() for part in text.partition("="))
    fields = _own(params_class)
    if not equals:
        raise UserError(f"--model_params={text}: expected name=value")
    if name in SHARED and name not in ("train_op_fn", "label_means"):
        raise UserError(f"--model_params={text}: {name} is a flag of its own, --{name}")
    if name not in fields:
        raise UserError(f"--model_params={text}: there is no {name!r}")
    kind = _kind(params_class, fields[name])
    try:
        return name, by_flag.read_param(kind, value)
    except (ValueError, KeyError):
        raise UserError(f"--model_params={text}: expected {EXPECTED[kind]}") from None
