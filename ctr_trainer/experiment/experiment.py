"""All settings of an experiment: what is trained, on what, and how."""

import dataclasses

from ctr_trainer.experiment.data_settings import DataSettings
from ctr_trainer.experiment.log_settings import LogSettings
from ctr_trainer.experiment.model_settings import ModelSettings
from ctr_trainer.experiment.workers_settings import WorkersSettings
from ctr_trainer.models.params import ModelParams
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.settings.setting import Settings
from ctr_trainer.settings.train_settings import TrainSettings


@dataclasses.dataclass(frozen=True)
class Experiment(Settings):
    """What the commands that train or use a model have in common; `build` makes the objects of it.

    Attributes:
      model, data, train, run, workers, log: see their classes.
      params: the params that all models have.
    """

    model: ModelSettings = ModelSettings()
    params: ModelParams = ModelParams()
    data: DataSettings = DataSettings()
    train: TrainSettings = TrainSettings()
    run: RunConfig = RunConfig()
    workers: WorkersSettings = WorkersSettings()
    log: LogSettings = LogSettings()
