"""The lines about models in the help of the command line."""

from ctr_trainer.models import param_texts
from ctr_trainer.models.registry import MODELS, find_model, summary


def describe_models():
    """-> list of lines: each model with the first line of its module's docstring."""
    first = "Models (--model=NAME --help shows a model's own params):"
    return [first] + [f"  --model={name:<18}{summary(name)}" for name in MODELS]


def describe_params(name):
    """-> list of lines: the model's own params."""
    first, *rest = param_texts.accepted(find_model(name).params_class)
    return [f"{name} takes {first}:" if rest else f"{name} takes {first}", *rest]
