"""Models by name."""

import ast
import dataclasses
import importlib
import importlib.util
import inspect
from collections.abc import Callable

from ctr_trainer.models.params import ModelParams
from ctr_trainer.system.messages.errors import UserError, did_you_mean

_PACKAGE = "ctr_trainer.models"
# Each model is the module of its name in this package. It is imported only when it is asked for, as it imports
# TensorFlow.
MODELS = (
    *("lr", "fm", "ffm", "wide_deep", "deepfm", "dcn_v2", "xdeepfm", "autoint", "fibinet", "masknet", "final_mlp"),
    *("pnn", "dlrm", "gdcn", "final_net", "qnn", "fcn", "wukong", "rank_mixer", "pepnet", "tabm"),
    *("din", "dien", "bst", "onetrans", "sdim"),
    *("shared_bottom", "mmoe", "ple", "esmm"),
)


@dataclasses.dataclass(frozen=True)
class Model:
    """A model that an Estimator can train.

    Attributes:
      model_fn: f(features, labels, mode, params) -> `EstimatorSpec`.
      params_class: the class of its `params`: the `Params` of its module, or `ModelParams`.
    """

    model_fn: Callable
    params_class: type[ModelParams]


def summary(name: str) -> str:
    """Returns the first line of a registered model's documentation, without importing it."""
    spec = importlib.util.find_spec(f"{_PACKAGE}.{name}")
    assert spec is not None and spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        return (ast.get_docstring(ast.parse(file.read())) or "").splitlines()[0]


def require_known(name: str) -> None:
    """Raises UserError if there is no such model: it is not registered, nor of the form `my.module:model_fn`.

    The module is found, and not imported: a model imports TensorFlow, which takes seconds.
    """
    if name in MODELS:
        return
    module, _, function = name.partition(":")
    if not function:
        hint = did_you_mean(name, MODELS)
        raise UserError(
            f"model={name}: choose one of {', '.join(MODELS)}, or name your own as my.module:model_fn{hint}"
        )
    try:
        found, problem = importlib.util.find_spec(module), f"No module named {module!r}"
    except (ImportError, ValueError) as error:
        found, problem = None, str(error)
    if found is None:
        raise UserError(f"model={name}: {problem}; is the module on PYTHONPATH?")


def find_model(name: str) -> Model:
    """Returns the Model of a registered name, or of the user's own `my.module:model_fn`.

    Raises:
      UserError: there is no such model; the message names the registered ones.
    """
    require_known(name)
    path, function = (f"{_PACKAGE}.{name}", "model_fn") if name in MODELS else name.split(":", 1)
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise UserError(f"model={name}: {error}; is the module on PYTHONPATH?") from error
    if not callable(getattr(module, function, None)):
        raise UserError(f"model={name}: {path} has no function {function!r}")
    params_class = getattr(module, "Params", ModelParams)
    if not (inspect.isclass(params_class) and issubclass(params_class, ModelParams)):
        raise UserError(f"model={name}: the Params of {path} is not a subclass of models.params.ModelParams")
    if "__dataclass_fields__" not in vars(params_class):
        raise UserError(f"model={name}: the Params of {path} lacks @dataclasses.dataclass(frozen=True)")
    return Model(getattr(module, function), params_class)
