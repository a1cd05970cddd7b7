"""The flags that are no settings of the library's, in groups; and absl flags made of any `Settings`.

A command's own groups are in the module of its name.
"""

from ctr_trainer.experiment.experiment import Experiment
from ctr_trainer.flags.define import default_text, define, flags_of, help_text, parsed, read
from ctr_trainer.flags.trained_model import CheckpointFlags, ExportFlags, PredictFlags, SavedModelFlags
from ctr_trainer.settings.evaluation_config import EvaluationConfig, MetricsConfig

# What `train` takes, and a worker of a bench.
TRAINING = (Experiment, EvaluationConfig, MetricsConfig, ExportFlags)
# What a flagfile of an experiment may hold.
EXPERIMENT = (
    Experiment,
    EvaluationConfig,
    MetricsConfig,
    CheckpointFlags,
    SavedModelFlags,
    ExportFlags,
    PredictFlags,
)

__all__ = [
    "EXPERIMENT",
    "TRAINING",
    "CheckpointFlags",
    "ExportFlags",
    "PredictFlags",
    "SavedModelFlags",
    "default_text",
    "define",
    "flags_of",
    "help_text",
    "parsed",
    "read",
]
