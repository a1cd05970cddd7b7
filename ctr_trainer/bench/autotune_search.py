"""Horovod's search for its best settings, in runs as short as those of a benchmark."""

import os

# Horovod's own pace takes 1,200 steps and more; this one 135.
_PACE = {
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "3",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "8",
}
LEAST_STEPS = 60  # Of a search that is to leave some rows.


def flags(log):
    """-> flags of `train`: search, and write the log."""
    return ("--autotune", f"--autotune_log={log}")


def pace():
    """-> (name, value) of the environment variables of the search's pace; what the user has set stays."""
    return tuple((name, os.environ.get(name, value)) for name, value in _PACE.items())
