"""How the changes that K workers made to a row between two syncs become one row.

At its sync worker k sends `share * (row_k - base_k)`, a share for each float of the row, the service adds, and worker k
goes on from what it has by then. Pushes come one by one and each is applied once, so a merge has to be a sum of what
each worker sends; of the other workers a push knows their number K only. With w the row, w_k that of a worker that
stepped it n_k times since its last sync, and w' the row after the K syncs of a window (`--sync_merge`):

    sum         w' = w + sum_k (w_k - w)
    mean        w' = w + 1/K sum_k (w_k - w)
    adaptive    w' = w + sum_k (w_k - w) / min(n_k, K)       SGD and momentum: as `mean`

Between two syncs each worker goes towards the row's optimum by itself. K workers that step a row often all arrive
there, and the sum of their ways leads K times as far; the mean is right. A row that a worker steps once in a window is
likely to be stepped by few; there the mean would leave a K-th of that step, and the sum is right. `adaptive` takes the
number of a worker's own steps for the number of workers. With N = 1 it is `sum`.

The optimizer's state, see `optimizers.State`:

    sums       acc of both Adagrads, n of FTRL                        like the weights
    averages   u of momentum; m, v, c1 and c2 of Adam; q of FTRL      s' = s + 1/K sum_k (s_k - s), always

Averages do not add up: after n steps s_k - s is about (beta^n - 1) s + (1 - beta^n) g, so K of them would subtract s K
times. A share of 1/K leaves a weighted mean of the workers' averages, of which c1 and c2 are the weights, whoever has
taken part; so m / c1 and v / c2 stay unbiased.

What a worker's gradient g_k, of the mean loss of its own batch, counts for, where `--scale_lr` makes the job s times as
fast as one worker that has the same batch as all K together (s is 1, sqrt(K) or K):

    s / K * g_k    `sum`, and `adaptive` but for SGD and momentum: K of them add up to s times the gradient of the mean
                   loss of all K batches; a row that one worker alone has met steps as that one worker would step it
    s * g_k        `mean`, and so `adaptive` for SGD and momentum: each trains as if all batches were like its own

The learning rate is one worker's, whatever K is: for SGD, and momentum, scaling the gradient scales the step. The steps
of the others do not grow with the gradient, but for what epsilon and initial accumulator do, so for their rows
`--scale_lr` changes next to nothing.

Caveat: within a window a worker's state has only its own steps. See docs/staleness.md for what that costs.
"""

import numpy as np

from ctr_trainer.embedding.optimizers import find_optimizer

MERGES = ("sum", "mean", "adaptive")


def shares(config, merge, workers):
    """-> float32[2, width], the least and the most share of a row's change that a worker sends; None where that is 1.

    Between the two it is 1 / n, after n steps.

    Args:
      config: a TableConfig.
      merge: of MERGES.
      workers: how many there are.
    """
    optimizer = find_optimizer(config.optimizer)
    merge = _of(optimizer, merge)
    sums = [True] * config.weights + [state.sums for state in optimizer.by_float(config.dims)]
    least = 1.0 if merge == "sum" else 1 / workers
    most = 1 / workers if merge == "mean" else 1.0
    bounds = np.array([(least, most) if each else (1 / workers, 1 / workers) for each in sums], np.float32)
    return None if (bounds == 1).all() else np.ascontiguousarray(bounds.T)


def gradient_factor(optimizer, merge, workers, scale):
    """-> what each worker's gradient is multiplied by.

    Args:
      optimizer: its name.
      merge: of MERGES.
      workers: how many there are.
      scale: s, by which the job's learning rates grow with its workers.
    """
    return scale if _of(find_optimizer(optimizer), merge) == "mean" else scale / workers


def _of(optimizer, merge):
    """-> the merge, `mean` in place of `adaptive` where that is so."""
    if merge not in MERGES:
        raise ValueError(f"merge {merge!r} is not one of {', '.join(MERGES)}")
    return "mean" if merge == "adaptive" and not optimizer.is_scale_free else merge
