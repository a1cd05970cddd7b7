"""Reads and writes a model's own hyperparameters as text: `--model_params=cross_layers=3,cross_rank=64`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ctr_trainer.models.params import SHARED, ModelParams
from ctr_trainer.models.registry import MODELS, find_model, summary
from ctr_trainer.settings import by_flag
from ctr_trainer.settings.setting import declared
from ctr_trainer.system.messages.errors import UserError


def describe_models() -> list[str]:
    """Returns a heading, and a line for each model with the first line of its module's docstring."""
    first = "Models (--model=NAME --help shows a model's own params):"
    return [first] + [f"  --model={name:<18}{summary(name)}" for name in MODELS]


def describe_params(name: str) -> list[str]:
    """Returns lines that list the model's own params."""
    first, *rest = accepted(find_model(name).params_class)
    return [f"{name} takes {first}:", *rest]


def parse(model: str, params_class: type[ModelParams], texts: Sequence[str], shared: Mapping[str, Any]) -> ModelParams:
    """Returns the params of a model from texts `name=value`, of which the last of a name counts, and fields with own
    flags.

    Raises UserError, which says what is accepted, for an unknown name, a wrong type, or a value that the class refuses.
    """
    own = _own(params_class)
    try:
        values = {}
        for flag, text in by_flag.named("model_params", texts).items():
            name = flag.partition("=")[2]
            if name not in own:
                has_flag = name in SHARED and name not in ("train_op_fn", "label_means")
                problem = f"{name} is a flag of its own, --{name}" if has_flag else f"there is no {name!r}"
                raise UserError(f"--{flag}={text}: {problem}")
            values[name] = by_flag.read_text(flag, own[name].type, text)
        with by_flag.refusing_by_flags():
            return params_class(**shared, **values)
    except UserError as error:
        raise UserError(f"{error}\n{model} takes " + "\n".join(accepted(params_class))) from None


def accepted(params_class: type[ModelParams]) -> list[str]:
    """Returns lines that list a class's own params with type, default and help."""
    fields = _own(params_class)
    lines = ["--model_params=name=value,name=value of"]
    if fields.keys() == _own(ModelParams).keys():
        lines = ["no --model_params of its own, only those of all models: name=value,name=value of"]
    for name, field in fields.items():
        found = declared(field)
        expected = "|".join(found.choices if found else ()) or by_flag.EXPECTED.get(field.type, "a text")
        default = by_flag.text_of(f"model_params={name}", field.default) or "none"
        text = f"{found.help if found else ''} [{expected}]; default {default}"
        lines.append(f"  {name:<26}{text.lstrip()}")
    return lines


def _own(params_class: type[ModelParams]) -> dict[str, dataclasses.Field[Any]]:
    """Returns the fields without flags of their own, those of all models last."""
    fields = [field for field in dataclasses.fields(params_class) if field.name not in SHARED]
    of_all = {field.name for field in dataclasses.fields(ModelParams)}
    return {field.name: field for field in sorted(fields, key=lambda field: field.name in of_all)}
