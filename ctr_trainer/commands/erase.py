"""Removes single values of features, such as the id of a user, from a model: their rows and optimizer state.

They are removed from all checkpoints of --model_dir. The conversions in its data_cache and what waits there to be
delivered are removed whole. All rows on disk (--table_memory) are written again for each checkpoint, which then shares
none of their files with others. The checkpoint is then published as a new generation in place of all earlier ones, if
a training published the model, or with --to. Rows of crosses are found in the data_cache and --train_data.

First remove the values from the raw data, from which the next training would learn them again. A job must not train the
model meanwhile. If it is interrupted, give the same command again. At the end it says what it could not reach.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ctr_trainer.commands.experiment.checks import require_model
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.keys import pairs_of
from ctr_trainer.commands.publish import REDIS, PublishFlags, publish_checkpoint
from ctr_trainer.commands.reports.training_run import FLAGS_FILE
from ctr_trainer.settings.by_flag import replaced
from ctr_trainer.settings.command_flags import TrainedModelFlags
from ctr_trainer.system.files.paths import Path, path_of
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import tensorflow_import

if TYPE_CHECKING:
    from ctr_trainer.data.source import Source

POSITIONAL = "FEATURE VALUE [FEATURE VALUE...]"
GROUPS = (Experiment, TrainedModelFlags, PublishFlags)
TAKES = ("model_dir", "checkpoint", "to", "publish_dtype", *REDIS, "train_data")
EXAMPLES = (
    "python -m ctr_trainer erase user u1234 --model_dir=models/ctr",
    "python -m ctr_trainer erase user u1234 user u77 --model_dir=models/ctr --to=publications/ctr",
    "python -m ctr_trainer erase - --model_dir=s3://bucket/ctr < users.txt",
)
_ELSEWHERE = ("train_data", "table_dir", "eval_data", "export_dir", "warm_start", "publish")


def run(
    values: list[str], given: frozenset[str], experiment: Experiment, use: TrainedModelFlags, publish: PublishFlags
) -> None:
    """Erases. The last line of the output is a JSON object; its `not_reached` lists what may still have the values."""
    pairs, model_dir = pairs_of(values), experiment.model.model_dir
    require_model(experiment.model)

    tensorflow_import.load()
    from ctr_trainer.checkpoint import checkpoint as checkpoints
    from ctr_trainer.checkpoint import retention
    from ctr_trainer.checkpoint.model_directory import features_path, one_job, trained_features
    from ctr_trainer.checkpoint.values import Erasure, values_of
    from ctr_trainer.commands.experiment.open_source import CACHE
    from ctr_trainer.live.publication import records
    from ctr_trainer.live.publication.cluster import is_cluster
    from ctr_trainer.live.publication.spool import DIRECTORY
    from ctr_trainer.ranks import distributed

    distributed.init()
    root = path_of(model_dir)
    flags = (root / FLAGS_FILE).read_json("remove it")["flags"] if (root / FLAGS_FILE).is_file() else {}
    known = {name: flags[name] for name in ("train_data", "publish_dtype", *REDIS) if flags.get(name)}
    experiment = replaced(experiment, {name: value for name, value in known.items() if name not in given})
    with one_job(model_dir):
        retention.remove_unfinished(model_dir)
        features = trained_features(model_dir)
        found = values_of(features, pairs)
        for feature in features[0].sparse:
            if (feature.is_bucketised or feature.derive) and feature.name in dict(pairs):
                raise UserError(f"{feature.name}: its rows are of ranges or parts, not of single values")
        caches = [*(root / CACHE).iterdir()] if (root / CACHE).is_dir() else []
        erasure = Erasure(features, found, list(_sources(experiment, caches)) if features[0].cross else [])
        for place in (root / checkpoints.RECENT, root / checkpoints.BEST):
            for path in place.iterdir() if place.is_dir() else ():
                if (path / checkpoints.MANIFEST).exists():
                    erasure.erase(path)
        if (path := features_path(model_dir)).is_file():
            path.write_json(erasure.without_texts(path.read_json("restore it")))
        for path in [*caches, *(path for _, path in records.list_generations(root / DIRECTORY))]:
            path.remove_all()
    to, checkpoint = publish.to or flags.get("publish", ""), use.checkpoint
    if to and not publish.to:  # A training has published its last state there.
        checkpoint = checkpoint if "checkpoint" in given else "latest"
        to = to if is_cluster(to) or records.find_current(to)[1] else ""
    if to:
        publish_checkpoint(given, experiment, checkpoint, to, grace_secs=0.0)
    named = {name: flags.get(name) for name in _ELSEWHERE}
    left = [
        *erasure.not_reached,
        *(f"{path}, which may have the bytes of a key or a text" for path in erasure.files_left(root)),
        *(f"--{name}={value} of the last training" for name, value in named.items() if value and value != to),
        "raw data, exports, other publications, copies and snapshots of the model",
        "servers and embedding services that hold the rows in memory until they are restarted",
        "what the dense layers learned from the examples",
    ]
    keys = {f"{each.feature} {each.value}": each.key for each in found}
    print("\n  ".join([f"keys: {len(erasure.keys)}, rows removed: {erasure.rows}. Not reached:", *left]))
    print(json.dumps(dict(keys=keys, rows=erasure.rows, published=to, not_reached=left)), flush=True)


def _sources(experiment: Experiment, caches: Iterable[Path]) -> Iterator["Source"]:
    """Yields the conversions in the model directory, and --train_data if it can be read."""
    from ctr_trainer.commands.experiment.open_source import open_source
    from ctr_trainer.data.dataset import FILE
    from ctr_trainer.data.input_schemes import is_stream

    data = experiment.data.train_data
    converted = [str(path) for path in caches if (path / FILE).is_file()]
    for path in [*converted, *([data] if data and not is_stream(data) else [])]:
        try:
            yield open_source(path, experiment, labels=False, fitted=False, warns=False)
        except UserError as error:
            print(f"not read for the crosses: {error}", file=sys.stderr)
