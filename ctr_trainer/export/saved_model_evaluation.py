"""Evaluates a SavedModel as a server runs it: from raw values, without this package's graph, tables or checkpoints."""

import os
import sys

import numpy as np
import tensorflow as tf
import tqdm

from ctr_trainer.export.raw_examples import read_raw
from ctr_trainer.export.saved_model import load_spec
from ctr_trainer.messages.errors import UserError
from ctr_trainer.metrics.click_metrics import metric_name
from ctr_trainer.metrics.evaluation_metrics import EvaluationMetrics
from ctr_trainer.ranks import distributed

tf1 = tf.compat.v1


def evaluate_saved_model(path, format, files, batch_size, config, threads=0, max_bad_rows=0):
    """Computes the metrics of an export over source files. A collective: each rank scores its share of the batches.

    Args:
      path: directory of a SavedModel that this package wrote.
      format: format of the files, one of `convert.SOURCES`.
      files: paths or patterns of raw data, as `convert` takes them.
      batch_size: number of examples at a time.
      config: `MetricsConfig`.
      threads: number of CPU threads of this rank; 0 lets TensorFlow choose.
      max_bad_rows: number of unusable rows that may be left out; the log names each.

    Returns:
      dict of `examples` (their number), the metrics of `EvaluationMetrics`, and `reliability`, the rows of its tables.

    Raises:
      UserError: there is no such export, the files do not fit its feature spec, or it predicts no label of theirs.
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
        metrics = EvaluationMetrics(list(outputs), config.exact_auc, bool(config.group_by))
        examples = 0
        batches = read_raw(format, files, spec, batch_size, config.group_by, max_bad_rows)
        hidden = not (distributed.is_chief() and sys.stderr.isatty())
        for number, batch in enumerate(tqdm.tqdm(batches, desc="evaluating", unit=" batches", disable=hidden)):
            if number % distributed.size() != distributed.rank():
                continue
            feed = {signature.inputs[name].name: batch.inputs[name] for name in signature.inputs}
            logits = session.run(outputs, feed)
            for label, values in logits.items():
                metrics.update(label, values.reshape(-1), batch.labels[label], batch.weights, batch.groups)
            examples += len(batch.weights)
    metrics.merge(distributed.all_sum, distributed.all_gather)
    total = int(distributed.all_sum(np.int64(examples), "evaluated_examples"))
    tables = {metric_name("reliability", label): rows for label, rows in metrics.reliability().items()}
    return {"saved_model": os.path.abspath(path), "examples": total, **metrics.results(), **tables}
