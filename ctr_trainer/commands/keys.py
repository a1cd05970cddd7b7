"""Shows what a model keeps of single values of features: their keys, rows and optimizer state in a checkpoint.

A value is written as in the raw data; of a bag or a sequence, it is one of the values. If the values of all features of
a cross are given, the rows of their crosses are shown too. With - for the values, they are read from standard input,
quoted as in a shell.
"""

import json
import shlex
import sys
from collections.abc import Sequence

from ctr_trainer.commands.experiment.checks import require_model
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.settings.command_flags import TrainedModelFlags
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import tensorflow_import

POSITIONAL = "FEATURE VALUE [FEATURE VALUE...]"
GROUPS = (Experiment, TrainedModelFlags)
TAKES = ("model_dir", "checkpoint")
EXAMPLES = (
    "python -m ctr_trainer keys user u1234 --model_dir=models/ctr",
    "python -m ctr_trainer keys user u1234 item i77 item 'a b' --model_dir=models/ctr --checkpoint=latest",
)


def run(values: list[str], given: frozenset[str], experiment: Experiment, use: TrainedModelFlags) -> None:
    """Prints a JSON object for each value, one a line."""
    pairs, model_dir = pairs_of(values), experiment.model.model_dir
    require_model(experiment.model)

    tensorflow_import.load()
    from ctr_trainer.checkpoint.model_directory import find_checkpoint, trained_features
    from ctr_trainer.checkpoint.values import rows_of, values_of
    from ctr_trainer.ranks import distributed

    distributed.init()
    checkpoint, found = find_checkpoint(model_dir, use.checkpoint), values_of(trained_features(model_dir), pairs)
    rows = rows_of(checkpoint, [each.key for each in found])
    for value in found:
        own = [{"table": table, **row} for (table, key), row in rows.items() if key == value.key]
        print(json.dumps({**value._asdict(), "global_step": checkpoint.step, "rows": own}), flush=True)


def pairs_of(values: Sequence[str]) -> list[tuple[str, str]]:
    """Returns (feature, value) pairs; raises UserError for none or for a feature without a value."""
    values = shlex.split(sys.stdin.read()) if values == ["-"] else values
    if not values or len(values) % 2:
        last = f"{values[-1]} has no value" if values else "there are none"
        raise UserError(f"expected pairs of FEATURE VALUE, and {last}, as in: keys user u1234 item i77")
    return list(zip(values[::2], values[1::2], strict=True))
