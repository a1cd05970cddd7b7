"""What every job of a benchmark trains: an `Experiment`; without --train_data it is W1, see `workload`."""

from ctr_trainer.settings.by_flag import by_flag, changed

# What `Job` sets by itself.
_OF_JOBS = (
    *("model_dir", "max_steps", "epochs", "phase_steps", "summary_steps"),
    *("save_checkpoints_steps", "save_checkpoints_epochs", "save_checkpoints_secs"),
)
_LEAST_WARMUP = 2


def job_flags(experiment, evaluate=False):
    """-> the flags of `train` that all jobs have in common and that are not at their defaults, as "--batch_size=512".

    Where the jobs differ, a job's own come behind them.

    Args:
      experiment: `Experiment`.
      evaluate: whether with --eval_data.
    """
    own = _OF_JOBS if evaluate else (*_OF_JOBS, "eval_data")
    values = {name: value for name, value in changed(experiment).items() if name not in own}
    texts = {name: ",".join(map(str, value)) if isinstance(value, tuple) else value for name, value in values.items()}
    return tuple(f"--{name}={text}" for name, text in texts.items())


def described(experiment, model=None):
    """-> what is trained, on what, in words.

    Args:
      experiment: `Experiment`.
      model: what to call the model; None for its name.
    """
    data = experiment.data.train_data or "W1 from memory: 26 fields, 13 numbers, random labels"
    return f"{model or experiment.model.model} on {data}, {experiment.data.batch_size} examples a batch"


def equal_examples(flags, bench, experiment):
    """-> (steps, warmup) of a job with such flags that trains on as many examples as the default.

    At least two steps each, so that one is traced and one is not.
    """
    given = dict(flag.lstrip("-").partition("=")[::2] for flag in flags)
    values = by_flag(experiment)

    def batches(name):
        return int(given.get(name, values[name])) / values[name]

    factor = batches("batch_size") * batches("accumulation_steps")
    warmup = max(round(bench.trace_steps / factor), _LEAST_WARMUP)
    total = round((bench.steps + bench.trace_steps) / factor)
    return max(total - warmup, warmup), warmup
