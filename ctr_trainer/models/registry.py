"""Models by name."""

import dataclasses
import importlib
import inspect
from collections.abc import Callable

from ctr_trainer.errors import UserError
from ctr_trainer.models import (
    autoint,
    bst,
    dcn_v2,
    deepfm,
    dien,
    din,
    dlrm,
    esmm,
    ffm,
    fibinet,
    final_mlp,
    fm,
    lr,
    masknet,
    mmoe,
    ple,
    shared_bottom,
    wide_deep,
    xdeepfm,
)
from ctr_trainer.models.params import ModelParams

MODELS = {
    "lr": lr,
    "fm": fm,
    "ffm": ffm,
    "wide_deep": wide_deep,
    "deepfm": deepfm,
    "dcn_v2": dcn_v2,
    "xdeepfm": xdeepfm,
    "autoint": autoint,
    "fibinet": fibinet,
    "masknet": masknet,
    "final_mlp": final_mlp,
    "dlrm": dlrm,
    "din": din,
    "dien": dien,
    "bst": bst,
    "shared_bottom": shared_bottom,
    "mmoe": mmoe,
    "ple": ple,
    "esmm": esmm,
}


@dataclasses.dataclass(frozen=True)
class Model:
    """A model that an Estimator can train.

    Attributes:
      model_fn: f(features, labels, mode, params) -> `EstimatorSpec`.
      params_class: of its `params`: the `Params` of its module, or `ModelParams`.
    """

    model_fn: Callable
    params_class: type[ModelParams]


def find_model(name):
    """-> the Model of a registered name, or of the user's own `my.module:model_fn`.

    Raises:
      UserError: there is none; says what there is.
    """
    if name in MODELS:
        return _model(name, MODELS[name], "model_fn")
    path, _, function = name.partition(":")
    if not function:
        raise UserError(f"--model={name}: choose one of {', '.join(MODELS)}, or name your own as my.module:model_fn")
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise UserError(f"--model={name}: {error}; is the module on PYTHONPATH?") from error
    return _model(name, module, function)


def _model(name, module, function):
    if not callable(getattr(module, function, None)):
        raise UserError(f"--model={name}: {module.__name__} has no function {function!r}")
    params_class = getattr(module, "Params", ModelParams)
    if not (inspect.isclass(params_class) and issubclass(params_class, ModelParams)):
        raise UserError(f"--model={name}: the Params of {module.__name__} is no subclass of models.params.ModelParams")
    if "__dataclass_fields__" not in vars(params_class):
        raise UserError(f"--model={name}: the Params of {module.__name__} lacks @dataclasses.dataclass(frozen=True)")
    return Model(getattr(module, function), params_class)
