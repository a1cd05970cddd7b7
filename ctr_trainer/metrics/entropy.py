"""Cross entropy relative to a prediction that knows the mean only."""

import math


def normalized_entropy(logloss, real_mean):
    """Normalised cross entropy: below 1 is better than predicting the mean for all.

        NE = logloss / -(p log p + (1 - p) log(1 - p)), p the mean label

    Source: He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014, section 3.

    Returns:
      float; NaN where there is one class only.
    """
    if not 0 < real_mean < 1:
        return math.nan
    return logloss / -(real_mean * math.log(real_mean) + (1 - real_mean) * math.log1p(-real_mean))
