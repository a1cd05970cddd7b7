"""Estimators on today's TensorFlow: programs written for `tf.estimator` port by their imports."""

from ctr_trainer.estimator.estimator import Estimator
from ctr_trainer.estimator.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate
from ctr_trainer.graph_notes.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.ranks.distributed import optimizer as DistributedOptimizer  # Named as in Horovod.
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.settings.metrics_config import MetricsConfig
from ctr_trainer.settings.run_config import RunConfig

__all__ = [
    "DistributedOptimizer",
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
