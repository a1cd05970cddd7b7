"""Trains click-through-rate models with TensorFlow and Horovod, with the embeddings in a lookup service.

`import ctr_trainer as ctr` provides the names below, such as `ctr.Estimator`. The module of a name is imported when the
name is first used, so the import itself is fast and does not import TensorFlow. These names and the packages that the
API pages describe are public; everything else is internal and may change.
"""

import ast
import importlib
import os
import pathlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctr_trainer.commands.click_classifier import ClickClassifier
    from ctr_trainer.commands.click_model import ClickModel, load, train
    from ctr_trainer.data.reader import BatchReader
    from ctr_trainer.estimator.estimator import Estimator
    from ctr_trainer.estimator.hooks.ending_hooks import StepHook
    from ctr_trainer.estimator.optimize import TrainOp
    from ctr_trainer.estimator.own_loop import OwnLoop, own_loop
    from ctr_trainer.estimator.program import run_program
    from ctr_trainer.estimator.train_and_evaluate import (
        EvalSpec,
        EvaluationResult,
        TrainResult,
        TrainSpec,
        train_and_evaluate,
    )
    from ctr_trainer.features.spec import FeatureSpec
    from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
    from ctr_trainer.ranks.distributed import init, is_chief, rank, size
    from ctr_trainer.ranks.distributed import optimizer as DistributedOptimizer
    from ctr_trainer.settings.embedding_config import EmbeddingConfig
    from ctr_trainer.settings.run_config import RunConfig
    from ctr_trainer.system.messages.log_lines import install as install_log

# Before TensorFlow is imported: its C++ code writes only errors, and each session has as many threads within operations
# as it asks for. Otherwise all sessions of a process have as many as the first one, even if that only computes keys.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")

__version__ = "0.2.0"
__all__ = [
    "BatchReader",
    "ClickClassifier",
    "ClickModel",
    "DistributedOptimizer",
    "EmbeddingConfig",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "EvaluationResult",
    "FeatureSpec",
    "ModeKeys",
    "OwnLoop",
    "RunConfig",
    "StepHook",
    "TrainOp",
    "TrainResult",
    "TrainSpec",
    "init",
    "install_log",
    "is_chief",
    "load",
    "own_loop",
    "rank",
    "run_program",
    "size",
    "train",
    "train_and_evaluate",
]


def __getattr__(name: str) -> Any:
    """Imports a public name from the module in which the imports for type checkers above have it."""
    tree = ast.parse(pathlib.Path(__file__).read_text())
    for node in (each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom) and name in __all__):
        for alias in node.names:
            if name == (alias.asname or alias.name):
                value = globals()[name] = getattr(importlib.import_module(node.module or ""), alias.name)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
