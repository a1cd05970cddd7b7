"""Estimators on today's TensorFlow: programs written for `tf.estimator` port by their imports."""

from ctr_trainer.estimator.estimator import Estimator
from ctr_trainer.estimator.evaluation import MetricsConfig
from ctr_trainer.estimator.run_config import EmbeddingConfig, RunConfig
from ctr_trainer.estimator.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate
from ctr_trainer.graph_notes.estimator_spec import EstimatorSpec, ModeKeys

__all__ = [
    "EmbeddingConfig",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "MetricsConfig",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "train_and_evaluate",
]
