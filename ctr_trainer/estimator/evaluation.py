"""The metrics of one pass over evaluation data."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.data.batch import Batch
from ctr_trainer.estimator.feed import Feed
from ctr_trainer.estimator.inputs import GraphInput
from ctr_trainer.estimator.slices import Slices
from ctr_trainer.features.hashing import keys
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.metrics.click_metrics import Mean, metric_name
from ctr_trainer.models.metrics.evaluation_metrics import EvaluationMetrics
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError, did_you_mean

_SLOT = "group"
_SUSPICIOUS_AUC = 0.999
_log = logging.getLogger(__name__)


def _groups_of(inputs: GraphInput, name: str) -> tuple[Any, Callable[[Batch | None, Any], np.ndarray]]:
    """Returns what to fetch with a step, and f(batch, what was fetched) -> int64[B], the groups, 0 if missing."""
    ids = inputs.features.spec.ids if inputs.fed else ()
    tables = inputs.features.spec.tables if inputs.fed else ()
    places = {f.name: (table.name, at, f.slot) for table in tables for at, f in enumerate(table.single)}
    in_graph = inputs.features if not inputs.fed and isinstance(inputs.features, dict) else {}
    offered = list(dict.fromkeys([*ids, *places, *in_graph]))
    if name not in offered:
        raise UserError(
            f"no column {name!r} to group by: expected an id column or a single-valued sparse feature; there are "
            f"{', '.join(offered) or 'none'}{did_you_mean(name, offered)}"
        )

    def groups(batch: Batch | None, fetched: Any) -> np.ndarray:
        if batch is not None and name not in ids:
            table, at, slot = places[name]
            found = batch.keys[table][:, at]
            return np.where(found == keys(slot, pa.array([""])), 0, found)
        # Also of integers, of which only some batches lack some.
        return keys(_SLOT, pa.array(fetched if batch is None else batch.ids[name]), missing_has_key=False)

    return tf.reshape(in_graph[name], [-1]) if in_graph else (), groups


class Evaluation:
    """Accumulates a model's metrics over the steps, then over the ranks. `steps` is the number of evaluated batches.

    Raises UserError if the column to group by does not exist.
    """

    def __init__(self, feed: Feed, spec: EstimatorSpec, group_by: str = "", slices: Slices | None = None) -> None:
        own = spec.eval_metric_ops or {}
        self._groups: Callable[[Batch | None, Any], np.ndarray] | None
        fetch, self._groups = _groups_of(feed.inputs, group_by) if group_by else ((), None)
        self._fetches = {
            "click": metric_tensors(feed.inputs, spec),
            "loss": spec.loss,
            "weight": feed.inputs.weight,
            "updates": {name: update for name, (_, update) in own.items()},
            "groups": fetch,
        }
        self._feed, self._labels = feed, list(self._fetches["click"])
        self._own, self._warned, self._slices = tuple(own), set[str](), slices
        self.reset()

    def reset(self) -> None:
        """Clears the metrics of all batches so far."""
        self._click = EvaluationMetrics(self._labels, self._groups is not None)
        self._loss = Mean()
        self._updates: dict[str, float] = dict.fromkeys(self._own, 0.0)
        self._examples = 0
        self.steps = 0

    @property
    def metric_names(self) -> list[str]:
        """The names of the metrics of `results`."""
        return ["loss", *self._click.results(), *self._own]

    def step(self, session: tf1.Session) -> None:
        """Evaluates one batch. Raises StopIteration at the end of the input."""
        fed = self._feed.next()
        values, batch = session.run(self._fetches, fed.feed), fed.batch
        groups = self._groups(batch, values["groups"]) if self._groups else None
        for label, click in values["click"].items():
            self._click.update(label, click["logits"], click["labels"], click["weights"], groups)
            if self._slices and batch:
                self._slices.update(batch, label, **click)
        self._examples += batch.size if batch else int(values["weight"])
        self._loss.update(np.array([values["loss"]], np.float32), np.array([values["weight"]], np.float32))
        self._updates = values["updates"]
        self.steps += 1

    def results(self) -> dict[str, Any]:
        """Returns the metrics over all ranks, including `new_keys` and each label's `reliability`. A collective.

        Raises UserError: no rank has evaluated an example.
        """
        share = np.array(self._examples, np.float64)
        total = distributed.all_sum(share, "metric.share")
        if not total:
            raise no_examples("evaluate")
        self._click.merge(distributed.all_sum, distributed.all_gather)
        of_ranks = distributed.all_gather(self._loss.state, "metric.losses").reshape(-1, 2)
        if distributed.is_chief() and len(of_ranks) > 1 and self._loss.state[1] and (of_ranks == of_ranks[0]).all():
            text = "all %d ranks have evaluated the same examples, so each one counts several times in the number of "
            text += "examples: give each rank its share of the data by dataset.shard(size, rank)"
            _log.warning(text, len(of_ranks))
        self._loss.state[:] = of_ranks.sum(axis=0)
        results: dict[str, Any] = {"loss": self._loss.result(), "examples": int(total), **self._click.results()}
        results |= self._feed.new_keys.report(distributed.all_sum)
        for name, value in self._updates.items():
            weighted = distributed.all_sum(np.asarray(value * share), f"metric.{name}")
            results[name] = float(weighted / total)
        for name, value in results.items() if distributed.is_chief() else ():
            if name.split("/")[0] == "auc" and value > _SUSPICIOUS_AUC and name not in self._warned:
                self._warned.add(name)
                _log.warning(
                    "%s = %.4f: a value above %g usually means that a feature leaks the label. Look for one that "
                    "is known only after the label; docs/inputs.md, 'Columns that leak the label', says how",
                    *(name, value, _SUSPICIOUS_AUC),
                )
        results |= self._slices.results() if self._slices else {}
        rows = self._click.reliability()
        return {**results, **{metric_name("reliability", label): table for label, table in rows.items()}}


def metric_tensors(inputs: GraphInput, spec: EstimatorSpec) -> dict[str, dict[str, tf.Tensor]]:
    """Returns a dict of label -> `logits`, `labels` and `weights` for its click metrics; {} for a model without logits.

    A model with one label predicts `logits`, and its label is named "". With several, it predicts `logits/<label>`.
    """
    predictions = spec.predictions if isinstance(spec.predictions, dict) else {}
    if inputs.labels is None:
        return {}
    labels = inputs.labels if isinstance(inputs.labels, dict) else {"": inputs.labels}
    if len(labels) == 1 and "logits" in predictions:
        labels = {"": next(iter(labels.values()))}
    tensors = {}
    for label, values in labels.items():
        if metric_name("logits", label) not in predictions:
            continue
        logits = tf.reshape(predictions[metric_name("logits", label)], [-1])
        values = tf.cast(tf.reshape(values, [-1]), tf.float32)
        tensors[label] = {"logits": logits, "labels": values, "weights": inputs.weights(values)}
    return tensors


def no_examples(purpose: str) -> UserError:
    """Returns the error for an input without examples."""
    return UserError(
        f"the input has no examples to {purpose}: input_fn returned an empty Dataset or reader on every rank; check "
        "its files and filters"
    )
