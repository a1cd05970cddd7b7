"""Every flag, in groups. A group is a frozen dataclass; its values are made once, at start, and handed on."""

from ctr_trainer.flags.accumulation import AccumulationFlags
from ctr_trainer.flags.bench import BenchFlags, ListedTrainingFlags
from ctr_trainer.flags.convert import ConvertFlags
from ctr_trainer.flags.data import DataFlags
from ctr_trainer.flags.define import define, read, require
from ctr_trainer.flags.embedding import EmbeddingFlags
from ctr_trainer.flags.evaluation import CheckpointFlags, EvaluationFlags, MetricsFlags, SavedModelFlags
from ctr_trainer.flags.model import ModelFlags
from ctr_trainer.flags.network import NetworkFlags
from ctr_trainer.flags.output import ExportFlags, PredictFlags
from ctr_trainer.flags.peers import PeersFlags
from ctr_trainer.flags.report import ReportFlags
from ctr_trainer.flags.run import RunFlags
from ctr_trainer.flags.serve import ServeFlags
from ctr_trainer.flags.service import ServiceFlags
from ctr_trainer.flags.simulate import SimulateFlags
from ctr_trainer.flags.training import TrainingFlags

EXPERIMENT = (
    ModelFlags,
    DataFlags,
    TrainingFlags,
    EmbeddingFlags,
    EvaluationFlags,
    MetricsFlags,
    CheckpointFlags,
    SavedModelFlags,
    RunFlags,
    ExportFlags,
    PredictFlags,
)

__all__ = [
    "EXPERIMENT",
    "AccumulationFlags",
    "BenchFlags",
    "CheckpointFlags",
    "ConvertFlags",
    "DataFlags",
    "EmbeddingFlags",
    "EvaluationFlags",
    "ExportFlags",
    "ListedTrainingFlags",
    "MetricsFlags",
    "ModelFlags",
    "NetworkFlags",
    "PeersFlags",
    "PredictFlags",
    "ReportFlags",
    "RunFlags",
    "SavedModelFlags",
    "ServeFlags",
    "ServiceFlags",
    "SimulateFlags",
    "TrainingFlags",
    "define",
    "read",
    "require",
]
