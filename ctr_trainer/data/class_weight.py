"""How rare the positive examples of a data set are."""

from ctr_trainer.data.source import source_of
from ctr_trainer.messages.errors import UserError

BALANCED = "balanced"


def balanced_weight(data, label="", negative_sampling=None, advanced=lambda text: None):
    """Computes the weight of positive examples with which both classes count the same in the loss.

        weight = share * negatives / positives

    `positives` and `negatives` are numbers of examples; a weight column does not change them. `share` is
    `negative_sampling`.

    scikit-learn's `class_weight="balanced"` weighs both classes: examples / (2 * positives) and
    examples / (2 * negatives). The ratio of these weights is the same as here, but their mean over the examples is 1.
    Here a negative example has weight 1, so the mean weight is
    2 * share * negatives / (positives + share * negatives), up to 2, and the loss grows by that factor.

    Example:
      `ModelParams(train_op, positive_weight=balanced_weight("data/train"))`

    Args:
      data: the path of a data set that `convert` made, or another `Source`.
      label: name of the label; needed if the data have several.
      negative_sampling: share of the negative examples to train on; None for all.
      advanced: f(text), called after each piece of the data that was counted.

    Returns:
      float, the factor by which the loss of a positive example is multiplied.

    Raises:
      UserError: the label is not known, or its examples are all positive or all negative.

    Caveat: the model predicts as if half of all examples were clicks, so COPC falls far below 1.
    """
    source = source_of(data)
    means = source.label_means(advanced)
    if not label and len(means) == 1:
        label = next(iter(means))
    if label not in means:
        several = ", ".join(means) or "none"
        raise UserError(
            f"--positive_weight={BALANCED} is of one label, and {source.name} has {several}: name one of them by "
            "--label, or give a number as --positive_weight"
        )
    positive = means[label]
    if not 0 < positive < 1:
        lacking = "negative" if positive == 1 else "positive"
        raise UserError(
            f"--positive_weight={BALANCED}: {source.name} has no {lacking} example of the label {label}: there is "
            "nothing to balance, or the label's column, `positive` or `threshold` in the feature spec is wrong"
        )
    return (1.0 if negative_sampling is None else negative_sampling) * (1 - positive) / positive
