"""How rare the positive examples of a data set are."""

from ctr_trainer.data.source import source_of
from ctr_trainer.messages.errors import UserError

BALANCED = "balanced"


def balanced_weight(data, label="", negative_sampling=None, advanced=lambda text: None):
    """-> what the loss of positive examples is multiplied by, so that they count as much as the negative ones.

        weight = share * negatives / positives

    of the data's examples, each counting once, whatever the weights of a weight column. scikit-learn's
    `class_weight="balanced"` gives both classes a weight, examples / (2 * positives) and examples / (2 * negatives).
    These have the same ratio, and a mean of 1 over the examples. Here a negative example counts 1, so the mean weight
    is 2 * share * negatives / (positives + share * negatives), up to 2, and the loss is as many times as large.

    Example:
      `ModelParams(train_op, positive_weight=balanced_weight("data/train"))`

    Args:
      data: a data set that `convert` made, as its path, or another `Source`.
      label: the name of the label, where the data have several.
      negative_sampling: the share of the negative examples to train on; None for all.
      advanced: f(text), called each time that it has gone on.

    Raises:
      UserError: the label is not known, or its examples are all positive or all negative.

    Caveat: predictions are of data with as many clicks as other examples: COPC falls far below 1.
    """
    source = source_of(data)
    means = source.label_means(advanced)
    if not label and len(means) == 1:
        label = next(iter(means))
    if label not in means:
        several = ", ".join(means) or "none"
        raise UserError(
            f"--positive_weight={BALANCED} is of one label, and {source.name} has {several}: name one of them by "
            "--label, or give a number"
        )
    positive = means[label]
    if not 0 < positive < 1:
        lacking = "negative" if positive == 1 else "positive"
        raise UserError(
            f"--positive_weight={BALANCED}: {source.name} has no {lacking} example of the label {label}: there is "
            "nothing to balance, or the label's column, `positive` or `threshold` in the feature spec is wrong"
        )
    return (1.0 if negative_sampling is None else negative_sampling) * (1 - positive) / positive
