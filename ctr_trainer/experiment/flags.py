"""Flags that are not settings of the library, in groups; and absl flags made of any `Settings`.

The flags of a command that no other module uses are in the command's own module.
"""

from ctr_trainer.experiment.define_flags import (
    REMOVED,
    Groups,
    default_text,
    define,
    flags_of,
    help_text,
    parse,
    parsed,
    read,
    shown,
)
from ctr_trainer.experiment.experiment import Experiment
from ctr_trainer.settings.by_flag import Flag
from ctr_trainer.settings.evaluation_config import EvaluationConfig, MetricsConfig
from ctr_trainer.settings.trained_model import CheckpointFlags, ExportFlags, PredictFlags, SavedModelFlags

# What `train` takes, and a worker of a bench.
TRAINING: Groups = (Experiment, EvaluationConfig, MetricsConfig, ExportFlags)
# What a flagfile of an experiment may hold.
EXPERIMENT: Groups = (
    Experiment,
    EvaluationConfig,
    MetricsConfig,
    CheckpointFlags,
    SavedModelFlags,
    ExportFlags,
    PredictFlags,
)

# The flags of commands that use a trained model and read data, and of those that read none.
OF_MODELS = (*("model_dir", "model", "checkpoint", "threads", "stall_timeout", "log_format"),)
OF_DATA = ("eval_data", "feature_spec", "batch_size", "num_readers", "prefetch_batches", "pin_cores")

__all__ = [
    "EXPERIMENT",
    "OF_DATA",
    "OF_MODELS",
    "REMOVED",
    "TRAINING",
    "CheckpointFlags",
    "ExportFlags",
    "Flag",
    "Groups",
    "PredictFlags",
    "SavedModelFlags",
    "default_text",
    "define",
    "flags_of",
    "help_text",
    "parse",
    "parsed",
    "read",
    "shown",
]
