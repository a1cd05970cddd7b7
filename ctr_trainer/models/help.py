"""What the command line's help says of models."""

import inspect

from ctr_trainer.models import param_texts
from ctr_trainer.models.registry import MODELS, find_model


def describe_models():
    """-> lines: each model with the first sentence of its module."""
    lines = ["Models (--model=NAME --help shows a model's own params):"]
    for name, module in MODELS.items():
        lines.append(f"  --model={name:<18}{inspect.getdoc(module).splitlines()[0]}")
    return lines


def describe_params(name):
    """-> lines: a model's own params."""
    first, *rest = param_texts.accepted(find_model(name).params_class)
    return [f"{name} takes {first}:" if rest else f"{name} takes {first}", *rest]
