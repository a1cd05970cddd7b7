"""Measures training jobs: each action prints a table and writes it with JSON and PNG into --output.

What is trained is what `train` would train with the same flags, or a --flagfile; without --train_data it is W1, made in
memory: DeepFM's 26 fields and 13 numbers with random labels, which is about speed only. All settings run in turn,
--rounds times; figures are medians and ranges.
"""

from ctr_trainer.bench import scaling, settings
from ctr_trainer.bench.experiment import Experiment
from ctr_trainer.errors import UserError
from ctr_trainer.flags import BenchFlags, DataFlags, EmbeddingFlags, ModelFlags, RunFlags, TrainingFlags

# An action is a module with its SUMMARY, and with run(bench, experiment): BenchFlags and an Experiment.
_MODULES = {"scaling": scaling, "settings": settings}
ACTIONS = {name: module.SUMMARY for name, module in _MODULES.items()}
GROUPS = (BenchFlags, ModelFlags, DataFlags, TrainingFlags, EmbeddingFlags, RunFlags)
EXAMPLES = (
    "python -m ctr_trainer bench scaling --workers=1,2",
    "python -m ctr_trainer bench scaling --workers=1,2,4 --flagfile=configs/demo.flags --dense_sync_steps=30",
    "python -m ctr_trainer bench settings --workers=2 --axes=sync_steps,batch_size,fp16_allreduce",
)


def run(action, bench, *groups):
    """Runs the action."""
    if bench.steps < bench.trace_steps:
        raise UserError(
            f"--steps={bench.steps} must be at least --trace_steps={bench.trace_steps}, so that a step is traced"
        )
    wrong = [n for n in bench.workers if n < 1]
    if wrong or not bench.workers:
        raise UserError(f"--workers={','.join(map(str, bench.workers))}: name one number or more, each at least 1")
    _MODULES[action].run(bench, Experiment(*groups))
