"""What every job of a benchmark trains."""

import dataclasses

from ctr_trainer.bench.jobs import training_flags
from ctr_trainer.flags import DataFlags, EmbeddingFlags, ModelFlags, RunFlags, TrainingFlags

# What `Job` sets by itself.
_OF_JOBS = dict(
    model_dir="",
    max_steps=0,
    epochs=1,
    phase_steps=0,
    save_checkpoints_steps=None,
    save_checkpoints_epochs=0,
    save_checkpoints_secs=0.0,
    summary_steps=100,
)
_LEAST_WARMUP = 2


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The flags of `train` that all jobs have in common; where they differ, a job's own come behind them.

    Without --train_data it is W1, see `workload`.
    """

    model: ModelFlags
    data: DataFlags
    training: TrainingFlags
    embedding: EmbeddingFlags
    run: RunFlags

    def flags(self, evaluate=False):
        """-> those that are not at their defaults, as "--batch_size=512".

        Args:
          evaluate: whether with --eval_data.
        """
        groups = [getattr(self, field.name) for field in dataclasses.fields(self)]
        own = _OF_JOBS if evaluate else {**_OF_JOBS, "eval_data": ""}
        cleared = [
            dataclasses.replace(group, **{k: v for k, v in own.items() if k in group.__dataclass_fields__})
            for group in groups
        ]
        return training_flags(cleared)

    def value(self, name):
        """-> the value of a flag."""
        for field in dataclasses.fields(self):
            if name in getattr(self, field.name).__dataclass_fields__:
                return getattr(getattr(self, field.name), name)
        raise KeyError(name)

    def describe(self, model=None):
        """-> what is trained, on what, in words.

        Args:
          model: what to call the model; None for its name.
        """
        data = self.data.train_data or "W1 from memory: 26 fields, 13 numbers, random labels"
        return f"{model or self.model.model} on {data}, {self.data.batch_size} examples a batch"


def equal_examples(flags, bench, experiment):
    """-> (steps, warmup) of a job with such flags that trains on as many examples as the default.

    At least two steps each, so that one is traced and one is not.
    """
    given = dict(flag.lstrip("-").partition("=")[::2] for flag in flags)

    def batches(name):
        return int(given.get(name, experiment.value(name))) / experiment.value(name)

    factor = batches("batch_size") * batches("accumulation_steps")
    warmup = max(round(bench.trace_steps / factor), _LEAST_WARMUP)
    total = round((bench.steps + bench.trace_steps) / factor)
    return max(total - warmup, warmup), warmup
