"""Estimators on today's TensorFlow: programs written for `tf.estimator` port by their imports."""

from ctr_trainer.estimator.estimator import Estimator
from ctr_trainer.estimator.run_config import EmbeddingConfig, RunConfig
from ctr_trainer.estimator_spec import EstimatorSpec, ModeKeys

__all__ = ["EmbeddingConfig", "Estimator", "EstimatorSpec", "ModeKeys", "RunConfig"]
