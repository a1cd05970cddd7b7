"""The names of `tf.estimator` on current TensorFlow: programs for `tf.estimator` change only their imports.

Session hooks that `tf.estimator` also named, such as `LoggingTensorHook`, come from `tf.compat.v1.train`.
"""

import re
from typing import Any

import tensorflow as tf

from ctr_trainer.checkpoint.warm_start import WarmStartSettings
from ctr_trainer.estimator import inputs
from ctr_trainer.estimator.estimator import Estimator
from ctr_trainer.estimator.exporters import BestExporter, Exporter, FinalExporter, LatestExporter
from ctr_trainer.estimator.own_loop import OwnLoop, own_loop
from ctr_trainer.estimator.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate
from ctr_trainer.export import signatures as export  # Named as in tf.estimator.
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.ranks.distributed import optimizer as DistributedOptimizer  # Named as in Horovod.
from ctr_trainer.ranks.distributed import rank, size
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.settings.run_config import RunConfig

__all__ = [
    "BestExporter",
    "DistributedOptimizer",
    "EmbeddingConfig",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
    "ModeKeys",
    "OwnLoop",
    "RunConfig",
    "TrainSpec",
    "WarmStartSettings",
    "export",
    "inputs",
    "own_loop",
    "rank",
    "size",
    "train_and_evaluate",
]

_SESSION_NAMES = re.compile(r"\w+Hook|SessionRun\w+|SecondOrStepTimer|CheckpointSaverListener|VocabInfo")


def __getattr__(name: str) -> Any:
    if _SESSION_NAMES.fullmatch(name) and hasattr(tf.compat.v1.train, name):
        return getattr(tf.compat.v1.train, name)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}: docs/porting.md says what replaces names of tf.estimator"
    )
