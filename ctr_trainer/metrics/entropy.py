"""Cross entropy relative to the prediction of the mean for every example."""

import math


def normalized_entropy(logloss, real_mean):
    """Normalises the cross entropy: below 1 is better than predicting the mean label for every example.

      NE = logloss / -(p log p + (1 - p) log(1 - p)), p the mean label

    Source: He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014, section 3.

    Args:
      logloss: mean cross entropy of the examples.
      real_mean: mean label of the examples.

    Returns:
      float; NaN if all labels are of one class.
    """
    if not 0 < real_mean < 1:
        return math.nan
    return logloss / -(real_mean * math.log(real_mean) + (1 - real_mean) * math.log1p(-real_mean))
