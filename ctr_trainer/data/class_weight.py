"""Class imbalance: a positive weight that balances the classes, and sampling of negative examples."""

import dataclasses
import os

import numpy as np

from ctr_trainer.data.batch import Batch
from ctr_trainer.data.row_order import Share
from ctr_trainer.data.source import Source, source_of
from ctr_trainer.settings.setting import refused
from ctr_trainer.system.files.paths import Advanced

BALANCED = "balanced"


def balanced_weight(
    data: str | os.PathLike | Source,
    label: str = "",
    negative_sampling: float | None = None,
    advanced: Advanced = lambda text: None,
) -> float:
    """Computes the weight of positive examples with which both classes have the same total weight in the loss.

        weight = share * negatives / positives

    `positives` and `negatives` are numbers of examples, which do not depend on a weight column. `share` is
    `negative_sampling`.

    The ratio of the weights is that of scikit-learn's `class_weight="balanced"`, but a negative example has weight 1,
    so the mean weight, and with it the loss, is up to 2 times as large.

    Example:
      `ModelParams(train_op, positive_weight=balanced_weight("data/train"))`

    Args:
      data: the path of a data set that `convert` wrote, or another `Source`.
      label: name of the label; required if the data have several labels.
      negative_sampling: share of the negative examples to train on; None for all.
      advanced: f(text), called after each counted piece of the data to report progress.

    Returns:
      float, the factor that multiplies the loss of a positive example.

    Raises:
      SettingError: the label is unknown, or its examples are all positive or all negative.

    Caveat: the model predicts as if half of all examples were clicks, so COPC is far below 1.
    """
    source = source_of(data)
    means = source.label_means(advanced)
    if not label and len(means) == 1:
        label = next(iter(means))
    if label not in means:
        raise refused(
            "{positive_weight} needs one label, and {source} has {several}: select one with {label:name}, or set "
            "{positive_weight:name} to a number",
            {"positive_weight": BALANCED, "label": label},
            source=source.name,
            several=", ".join(means) or "none",
        )
    positive = means[label]
    if not 0 < positive < 1:
        lacking = "negative" if positive == 1 else "positive"
        raise refused(
            "{positive_weight}: {source} has no {lacking} example for the label {wanted}, so there is nothing to "
            "balance; check the label's `column`, `positive` and `threshold` in the feature spec",
            {"positive_weight": BALANCED},
            source=source.name,
            lacking=lacking,
            wanted=label,
        )
    return (1.0 if negative_sampling is None else negative_sampling) * (1 - positive) / positive


def without_negatives(batch: Batch, left: Share, share: float, seed: int, epoch: int) -> Batch:
    """Returns a batch in which each negative example is kept with the probability `share`.

    A dropped example has weight 0 and no keys, so no row is looked up or trained for it. It remains in the batch, so
    the number of steps per worker and the position to resume from do not change. Whether an example is dropped depends
    only on the seed, the epoch and the position of the example in the epoch's order. The number of workers, the batch
    size and restarts have no influence.

    Caveat: the dense layers still compute dropped examples.

    `left` are the places in the epoch's order that the worker has left, of which the batch has the first ones.
    """
    draws = np.empty(0)
    for start, stop in left:
        if count := min(stop - start, batch.size - len(draws)):
            # Place i of the order has draw i of the epoch's generator.
            random = np.random.Generator(np.random.PCG64((seed, epoch, 1)).advance(start))
            draws = np.append(draws, random.random(count))
    left_out = ~(batch.labels > 0.5)
    left_out[: batch.size] &= draws >= share
    keys = {table: np.where(left_out[:, None], 0, of_table) for table, of_table in batch.keys.items()}
    bags = {
        name: dataclasses.replace(bag, values=np.where(np.repeat(left_out, np.diff(bag.splits)), 0, bag.values))
        for name, bag in batch.bags.items()
    }
    weights = np.where(left_out, np.float32(0), batch.weights)
    return dataclasses.replace(batch, keys=keys, bags=bags, weights=weights)
