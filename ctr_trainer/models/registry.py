"""Models by name."""

import importlib

from ctr_trainer.errors import UserError
from ctr_trainer.models import deepfm, lr

MODELS = {"lr": lr.model_fn, "deepfm": deepfm.model_fn}


def find_model(name):
    """-> the model_fn of a registered name, or of the user's own `my.module:model_fn`.

    Raises:
      UserError: there is none; says what there is.
    """
    if name in MODELS:
        return MODELS[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        raise UserError(f"--model={name}: choose one of {', '.join(MODELS)}, or name your own as my.module:model_fn")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"--model={name}: {error}; is the module on PYTHONPATH?") from error
