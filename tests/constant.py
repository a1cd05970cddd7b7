"""Settings of `TrainOp` under which each step is alike, however many a run makes."""

from ctr_trainer.settings.train_settings import Schedule

CONSTANT = dict(schedule=Schedule(), embedding_lr_schedule="constant")
