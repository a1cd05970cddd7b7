"""Evaluates a SavedModel as a server uses it: from raw values, without this package's graph, tables or checkpoints."""

import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf
import tensorflow.compat.v1 as tf1
import tqdm

from ctr_trainer.data.batch import Batch, batch_of, rows_of
from ctr_trainer.data.blocks import ID_PREFIX, BadRow, BadRows
from ctr_trainer.data.conversion.convert import SOURCES
from ctr_trainer.data.encode import Encoder
from ctr_trainer.data.encoders import split
from ctr_trainer.data.observations import Observations, form
from ctr_trainer.data.source import list_files
from ctr_trainer.data.typed import bytes_of, is_list
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.export.exported_table import row_numbers
from ctr_trainer.export.raw_inputs import NUMBER, TEXT, columns_of
from ctr_trainer.export.saved_model import load_figure, load_spec
from ctr_trainer.features.columns import BOUNDARIES, FORM, NEW_KEYS, SparseFeature, Statistics
from ctr_trainer.features.hashing import Buckets, buckets_of, keys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.times import texts_of
from ctr_trainer.models.metrics.click_metrics import metric_name
from ctr_trainer.models.metrics.evaluation_metrics import EvaluationMetrics
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError, did_you_mean

_ROW = "row of the chunk"
_GROUP_SLOT = "group"


@dataclasses.dataclass
class RawExamples:
    """Examples: the `inputs` of an export, see `receivers.ExportedFeatures`, and the `batch` that a training reads.

    `groups` are int64[B], 0 if missing, or None.
    """

    inputs: dict[str, np.ndarray]
    batch: Batch
    groups: np.ndarray | None


def read_raw(
    format: str,
    files: Sequence[str],
    spec: FeatureSpec,
    batch_size: int,
    group_by: str = "",
    max_bad_rows: int = 0,
    statistics: Statistics | None = None,
) -> Iterator[RawExamples]:
    """Yields the RawExamples of source files. Refuses and names the rows that a conversion would refuse.

    The values of `group_by`, an id column or single-valued feature, are the groups; "" for none. At most `max_bad_rows`
    unusable rows are skipped. `statistics` has the boundaries of quantiles. Raises UserError if the
    files do not fit the spec, or if there is no column `group_by`.
    """
    offered = [*spec.ids, *(f.name for f in spec.sparse if f.combiner is None and not f.is_bucketised)]
    if group_by and group_by not in offered:
        hint = did_you_mean(group_by, offered)
        raise UserError(f"no column {group_by!r} to group by; there are {', '.join(offered) or 'none'}{hint}")
    bad_rows, observed = BadRows(max_bad_rows), Observations(spec)
    # The rows are numbered, so that the raw values of the good rows can be found.
    numbered = dataclasses.replace(spec, ids=(*spec.ids, _ROW))
    encoder, buckets = Encoder(numbered), buckets_of(spec, statistics)
    for block in SOURCES[format](list_files(files), spec, None):
        found: list[BadRow] = []
        chunk = block(found)
        chunk.table = chunk.table.append_column(_ROW, pa.array(np.arange(len(chunk.table))))
        encoded = encoder.encode(chunk, found, observed)
        bad_rows.add(found)
        observed.see_labels(chunk.table)
        raw = chunk.table.take(encoded[ID_PREFIX + _ROW])
        for first in range(0, len(raw), batch_size):
            yield _examples(spec, raw.slice(first, batch_size), encoded.slice(first, batch_size), group_by, buckets)
    observed.check()


def _examples(
    spec: FeatureSpec, raw: pa.Table, encoded: pa.Table, group_by: str, buckets: dict[str, Buckets]
) -> RawExamples:
    readers = {f.column: f for f in spec.dense} | {f.column: f for f in spec.sparse}
    inputs = {}
    for name, column in columns_of(spec).items():
        feature = readers.get(name)
        if column.kind == NUMBER:
            inputs[name] = encoded[readers[name].name].to_numpy()
        elif isinstance(feature, SparseFeature) and column.is_list:
            inputs[name] = _lists(raw[name].combine_chunks(), feature)
        else:
            values = raw[name].combine_chunks()
            inputs[name] = texts_of(bytes_of(values) if column.kind == TEXT else values)
    groups = None
    if group_by in spec.ids:
        groups = keys(_GROUP_SLOT, encoded[ID_PREFIX + group_by], missing_has_key=False)
    elif group_by:
        (slot,) = (f.slot for f in spec.sparse if f.name == group_by)
        found = encoded[group_by].to_numpy()
        groups = np.where(found == keys(slot, pa.array([""])), 0, found)
    return RawExamples(inputs, batch_of(rows_of(encoded, spec, buckets), len(encoded)), groups)


def _lists(values: pa.Array, feature: SparseFeature) -> np.ndarray:
    """Returns string[B, N], the values of each row, padded with "" to the length of the longest row."""
    lists = values if is_list(values.type) else split(pa.array(texts_of(values), pa.binary()), feature)
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    found = np.full((len(lists), lengths.max(initial=0)), b"", object)
    found[np.arange(found.shape[1]) < lengths[:, None]] = texts_of(lists.flatten())
    return found


def evaluate_saved_model(
    path: str,
    format: str,
    files: Sequence[str],
    batch_size: int,
    group_by: str = "",
    threads: int = 0,
    max_bad_rows: int = 0,
) -> dict[str, Any]:
    """Computes the metrics of an export on source files. A collective call: each rank scores its share of the batches.

    Returns `saved_model`, its `global_step` if it has one, the number of `examples`, the metrics of
    `EvaluationMetrics`, `new_keys` as `NewKeys.report` returns it, and `reliability`, the rows of its tables. With
    `threads` 0, TensorFlow chooses. The log names each unusable row that is skipped, at most `max_bad_rows`. Raises
    UserError if there is no such export, the files do not fit its feature spec, or it has no logits for any label.
    """
    spec = load_spec(path)
    labels = [""] if len(spec.labels) == 1 else [label.name for label in spec.labels]
    with tf.Graph().as_default(), tf1.Session(config=distributed.session_config(threads)) as session:
        signature = tf1.saved_model.load(session, [tf1.saved_model.tag_constants.SERVING], str(path)).signature_def[
            tf1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
        ]
        outputs = {label: signature.outputs.get(metric_name("logits", label)) for label in labels}
        outputs = {label: tensor.name for label, tensor in outputs.items() if tensor is not None}
        if not outputs:
            raise UserError(f"{path}: the model has no output `logits`; its outputs are {', '.join(signature.outputs)}")
        about: dict[str, Any] = {"saved_model": os.path.abspath(path)}
        columns = {f.name: spec.source(f.column) for f in spec.sparse if not f.is_bucketised}
        if others := sorted(signature.inputs.keys() - columns_of(spec).keys()):
            raise UserError(f"{path}: its input {others[0]!r} is not a column of its feature spec: export it again")
        if (step := tf1.train.get_global_step()) is not None:
            about["global_step"] = int(session.run(step))
        metrics = EvaluationMetrics(list(outputs), bool(group_by))
        examples, forms = 0, load_figure(path, FORM)
        given, numbers = _row_numbers(spec)
        new_keys = NewKeys(numbers, warns=distributed.is_chief())
        new_keys.in_training = load_figure(path, NEW_KEYS)
        new_keys.forms = lambda name: (
            form(raw.inputs[columns[name]].ravel().tolist()) if name in columns else "",
            forms.get(name, ""),
        )
        statistics = {name: {BOUNDARIES: bounds} for name, bounds in load_figure(path, BOUNDARIES).items()}
        batches = read_raw(format, files, spec, batch_size, group_by, max_bad_rows, statistics)
        hidden = not (distributed.is_chief() and sys.stderr.isatty())
        for number, raw in enumerate(tqdm.tqdm(batches, desc="evaluating", unit=" batches", disable=hidden)):
            if number % distributed.size() != distributed.rank():
                continue
            batch = raw.batch
            keys_of = {f.name: batch.keys[t.name][:, at] for t in spec.tables for at, f in enumerate(t.single)}
            keys_of |= {name: bag.values for name, bag in batch.bags.items()}
            feed = {signature.inputs[name].name: raw.inputs[name] for name in signature.inputs}
            feed |= {given[name]: keys_of[name][keys_of[name] != 0] for name in numbers}
            logits, found = session.run((outputs, numbers), feed)
            for name, rows in found.items():
                new_keys.add([name], np.array([[(rows == 0).sum(), len(rows)]]))
            labels_of = dict(zip(labels, batch.labels.reshape(batch.size, -1).T, strict=True))
            for label, values in logits.items():
                metrics.update(label, values.reshape(-1), labels_of[label], batch.weights, raw.groups)
            examples += batch.size
    metrics.merge(distributed.all_sum, distributed.all_gather)
    total = int(distributed.all_sum(np.array(examples, np.int64), "evaluated_examples"))
    if not total:
        raise UserError(f"{', '.join(files)}: there is no example to evaluate")
    shares = new_keys.report(distributed.all_sum)
    tables = {metric_name("reliability", label): rows for label, rows in metrics.reliability().items()}
    return {**about, "examples": total, **metrics.results(), **shares, **tables}


def _row_numbers(spec: FeatureSpec) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Returns for each feature with exported keys: a placeholder of int64[n] keys, and their `row_numbers`."""
    variables = {"/".join(v.op.name.split("/")[-2:]): v for v in tf1.global_variables()}
    given, numbers = {}, {}
    for f in spec.embedded:
        if f"export_dim{f.dim}/lines" in variables:
            given[f.name] = tf1.placeholder(tf.int64, [None])
            index = (variables[f"export_dim{f.dim}/{part}"] for part in ("line_of", "lines"))
            numbers[f.name] = row_numbers(given[f.name], *index)
    return given, numbers
