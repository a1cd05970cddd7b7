"""Settings of `TrainOp` under which each step is alike, however many a run makes."""

from ctr_trainer.estimator.schedules import Schedule

CONSTANT = dict(schedule=Schedule(), embedding_schedule="constant")
