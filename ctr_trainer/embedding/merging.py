"""How the changes that K workers made to a row between two syncs become one row.

At its sync worker k sends `share * (row_k - base_k)`, a share for each float of the row, the service adds, and worker k
goes on from what it has by then. Pushes come one by one and each is applied once, so a merge has to be a sum of what
each worker sends; of the other workers a push knows their number K only. With w the row, w_k that of a worker that
stepped it in n_k of its N steps since its last sync, and w' the row after the K syncs of a window (`--sync_merge`):

    sum         w' = w + sum_k (w_k - w)
    mean        w' = w + 1/K sum_k (w_k - w)
    adaptive    w' = w + sum_k (1 - (1 - p_k)^K) / (K p_k) (w_k - w),  p_k = (n_k - 1) / (N - 1)
                SGD and momentum: as `mean`

Where each of K workers steps a row with the probability p at a step, they make K p steps of it for the 1 - (1 - p)^K
that one worker with all their examples would make, since that one steps the row once however many of the K have met it;
`adaptive` sends of each change that share. So a row that all meet at each step gets their mean (their sum would lead K
times as far), and one that is rarely met the sum (the mean would leave it a K-th of its steps). p_k is what the other
N - 1 steps say of a row that was met in one; with N = 1 they say nothing, and it is 0: `adaptive` is `sum` then.

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


class Shares:
    """What part of its change of a row a worker sends.

    Attributes:
      bounds: float32[2, width], for each float of a row the least and the most.
    """

    def __init__(self, bounds, workers):
        self.bounds, self._workers = bounds, workers

    def by_steps(self, window_steps):
        """-> float32[window_steps + 1], to be kept between `bounds`: by the number of steps of a row.

        Args:
          window_steps: how many steps the worker made; 0 of a row, as where only float16 left something, is as 1.
        """
        met = np.maximum(np.arange(window_steps + 1) - 1.0, 0) / max(window_steps - 1, 1)
        at_least_one = 1 - (1 - met) ** self._workers
        return np.divide(at_least_one, self._workers * met, out=np.ones_like(met), where=met > 0).astype(np.float32)


def shares(config, merge, workers):
    """-> Shares, or None where all of each change is sent.

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
    return None if (bounds == 1).all() else Shares(np.ascontiguousarray(bounds.T), workers)


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
