"""How the changes that K workers made to a row between two syncs become one row.

At its sync worker k sends `share * (row_k - base_k)`, a share for each float of the row, the service adds, and worker k
goes on from what it has by then. Pushes come one by one and each is applied once, so a merge has to be a sum of what
each worker sends; of the other workers a push knows their number K only. With w' the row after all K syncs of a window:

    --sync_merge=sum    weights:   w' = w + sum_k (w_k - w)
    --sync_merge=mean   weights:   w' = w + 1/K sum_k (w_k - w)

A worker that did not step the row sends nothing, which counts as w_k = w: under `mean` a row that one worker alone has
changed moves by a K-th of that change.

The optimizer's state, see `optimizers.State`:

    sums       acc of both Adagrads, n of FTRL                        as the weights: `sum` adds, `mean` averages
    averages   u of momentum; m, v, c1 and c2 of Adam; q of FTRL      s' = s + 1/K sum_k (s_k - s) under either

Averages do not add up: after n steps s_k - s is about (beta^n - 1) s + (1 - beta^n) g, so K of them would subtract s K
times. A share of 1/K leaves a weighted mean of the workers' averages, of which c1 and c2 are the weights, whoever has
taken part; so m / c1 and v / c2 stay unbiased.

What a worker's own learning rate is, where the job's is `lr` and `--scale_lr` scales it by s (1, sqrt(K) or K):

    sum, sgd and momentum      s / K * lr   K workers' gradients, each a mean over its own batch, add up to s times the
                                            gradient of one worker that has all K batches
    sum, the scale-free        lr           a row that one worker has met steps by lr whoever that is; one that all
                                            have met steps by lr * sum_k g_k / sqrt(sum over workers and steps of g^2),
                                            the steps of one worker that does them one after the other
    mean                       s * lr       each trains as if it had all K batches, and the mean is taken

The scale-free are those whose steps do not grow with the gradient: the two Adagrads, Adam, AdamW, FTRL. For them, and
under `sum`, `--scale_lr` concerns the dense variables only: s / K * lr would make steps of `none` K times too small.

Caveat: within a window a worker's state has only its own steps. See docs/staleness.md for what that costs.
"""

import numpy as np

from ctr_trainer.embedding.optimizers import find_optimizer

MERGES = ("sum", "mean")


def shares(config, merge, workers):
    """-> float32[width], the share of a row's change that a worker sends; None where that is all of it.

    Args:
      config: a TableConfig.
      merge: of MERGES.
      workers: how many there are.
    """
    if merge not in MERGES:
        raise ValueError(f"merge {merge!r} is not one of {', '.join(MERGES)}")
    states = find_optimizer(config.optimizer).by_float(config.dims)
    adds = np.array([merge == "sum"] * config.weights + [merge == "sum" and state.sums for state in states])
    return None if workers == 1 or adds.all() else np.where(adds, 1, 1 / workers).astype(np.float32)


def learning_rate_factor(optimizer, merge, workers, scale):
    """-> what the job's learning rate of the rows is multiplied by on each worker.

    Args:
      optimizer: its name.
      merge: of MERGES.
      workers: how many there are.
      scale: by which the learning rates grow with the workers.
    """
    if merge == "mean":
        return scale
    return 1.0 if find_optimizer(optimizer).is_scale_free else scale / workers
