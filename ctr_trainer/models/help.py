"""What the command line's help says of models."""

from ctr_trainer.models import param_texts
from ctr_trainer.models.registry import MODELS, find_model, summary


def describe_models():
    """-> lines: each model with the first sentence of its module."""
    first = "Models (--model=NAME --help shows a model's own params):"
    return [first] + [f"  --model={name:<18}{summary(name)}" for name in MODELS]


def describe_params(name):
    """-> lines: a model's own params."""
    first, *rest = param_texts.accepted(find_model(name).params_class)
    return [f"{name} takes {first}:" if rest else f"{name} takes {first}", *rest]
