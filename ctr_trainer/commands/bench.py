"""Measures training jobs: each action prints a table and writes it with JSON and PNG into --output.

A job trains as `train` does with the same flags or --flagfile. Without --train_data it trains on W1, generated in
memory: 26 fields and 13 numbers with random labels for DeepFM, to measure speed only. All settings run in turn,
--rounds times; figures are medians and ranges.
"""

import dataclasses

from ctr_trainer.bench import accumulation, methods, network, scaling, settings
from ctr_trainer.bench.job_flags import AccumulationFlags, BenchFlags, ListedExperiment, NetworkFlags
from ctr_trainer.commands.experiment.checks import require_data
from ctr_trainer.models.registry import require_known
from ctr_trainer.system.files import outputs
from ctr_trainer.system.messages.errors import UserError

# The module of an action has a SUMMARY and run(bench, experiment, ...), where "..." are the other groups that it uses.
_MODULES = {
    "scaling": scaling,
    "settings": settings,
    "methods": methods,
    "accumulation": accumulation,
    "network": network,
}
ACTIONS = {name: module.SUMMARY for name, module in _MODULES.items()}
GROUPS = (BenchFlags, AccumulationFlags, NetworkFlags, ListedExperiment)
MAIN = (
    *("workers", "rounds", "steps", "output", "axes", "rows", "equal"),
    *("machines", "gbit", "dense_params", "ways"),
    *("model", "hidden_units", "train_data", "eval_data", "batch_size", "accumulation_steps", "dense_sync_steps"),
    *("dense_exchange", "fp16_allreduce", "optimizer", "learning_rate", "embedding_service", "sync_steps", "threads"),
)
EXAMPLES = (
    "python -m ctr_trainer bench scaling --workers=1,2",
    "python -m ctr_trainer bench scaling --workers=1,2,4 --flagfile=configs/demo.flags --dense_sync_steps=30",
    "python -m ctr_trainer bench settings --workers=2 --axes=sync_steps,batch_size,fp16_allreduce",
    "python -m ctr_trainer bench methods",
    "python -m ctr_trainer bench accumulation --accumulation_steps=1,2,4,8 --equal=examples,steps",
    "python -m ctr_trainer bench network --machines=4 --gbit=2.5,5 --dense_params=resnet50/100,vgg16/100",
)


def run(
    action: str, bench: BenchFlags, compared: AccumulationFlags, machines: NetworkFlags, experiment: ListedExperiment
) -> None:
    """Runs the action."""
    module = _MODULES[action]
    rounds, steps = (1, 100) if module is network else (3, 200)  # `network` runs many jobs with many workers.
    bench = dataclasses.replace(bench, rounds=bench.rounds or rounds, steps=bench.steps or steps)
    if bench.steps < bench.trace_steps:
        raise UserError(f"--steps={bench.steps} must be at least {bench.trace_steps}, so that a step is traced")
    if not bench.workers:
        raise UserError("--workers=: name one number or more, each at least 1")
    batches = experiment.train.accumulation_steps or (1,)
    if module is accumulation:
        batches = (1,)  # Each of its jobs has its own batch size.
    elif len(batches) > 1:
        listed = ",".join(map(str, batches))
        raise UserError(
            f"--accumulation_steps={listed}: `bench {action}` takes one number, `bench accumulation` a list"
        )
    # Checked before the measurements, which take an hour.
    require_known(experiment.model.model)
    for path in filter(None, (experiment.data.train_data, experiment.data.eval_data)):
        require_data(path, experiment)
    outputs.refuse_foreign_files(bench.output, [f"{action}.txt", f"{action}.json", f"{action}*.png"])
    used = {accumulation: (compared, experiment), network: (machines,)}
    module.run(bench, experiment.of_job(*batches), *used.get(module, ()))
