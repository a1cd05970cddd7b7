"""How the changes that K workers made to a row between two syncs become one row.

At its sync worker k sends `share * (row_k - base_k)`, a share for each float of the row, the service adds, and worker k
goes on from what it has by then. Pushes come one by one and each is applied once, so a merge has to be a sum of what
each worker sends; of the other workers a push knows their number K only. With w the row, w_k that of a worker that
stepped it in n_k of its N steps since its last sync, and w' the row after the K syncs of a window (`--sync_merge`):

    sum         w' = w + sum_k (w_k - w)
    mean        w' = w + 1/K sum_k (w_k - w)
    adaptive    w' = w + sum_k share(p_k) (w_k - w),  share(p) = (1 - (1 - p)^K) / (K p),  share(0) = 1
                SGD and momentum: as `mean`

Where each of K workers steps a row with the probability p at a step, they make K p steps of it for the 1 - (1 - p)^K
that one worker with all their examples would make, since that one steps the row once however many of the K have met it;
`adaptive` sends of each change that share. So a row that all meet at each step gets their mean (their sum would lead K
times as far), and one that is rarely met the sum (the mean would leave it a K-th of its steps). p_k is what worker k's
steps so far say of the row, see `RowFrequency`: over one window alone it would be rough where few steps met the row.

The optimizer's state, see `sparse_optimizers.State`:

    sums       acc of both Adagrads, n of FTRL                        like the weights
    averages   u of momentum; m, v, c1 and c2 of Adam; q of FTRL      s' = s + 1/K sum_k (s_k - s)
    v and c2 of Adam, if `adaptive`           s' = s + 1/K sum_k (1 - beta2^M_k) / (1 - beta2^n_k) (s_k - s)

Averages do not add up: after n steps s_k - s is about (beta^n - 1) s + (1 - beta^n) g, so K of them would subtract s K
times. A share of 1/K leaves a weighted mean of the workers' averages, of which c1 and c2 are the weights, whoever has
taken part; so m / c1 and v / c2 stay unbiased. But then v would forget a K-th of what one worker's would, and give its
last few squares too much weight: with M_k = K share(p_k) n_k, the steps that the n_k stand for, it forgets what M_k
steps forget. m is left at 1/K: each worker goes on with the m of all, which by itself makes momentum last longer.

L2 of looked-up rows (`RowGradients`) is l2 * share(p) * w beside s / K * g_k, and K l2 share(p) w beside s * g_k: K
workers that all meet a row would decay it K times as much, against its data, as one worker does. Where no shares are
counted (`sum` of Adagrad, shared memory) it is l2 * w.

What a worker's gradient g_k, of the mean loss of its own batch, counts for, where `--scale_lr` makes the job s times as
fast as one worker that has the same batch as all K together (s is 1, sqrt(K) or K; where the A batches that a step
accumulates count too, sqrt(K A) or K A):

    s / K * g_k    `sum`, and `adaptive` but for SGD and momentum: K of them add up to s times the gradient of the mean
                   loss of all K batches; a row that one worker alone has met steps as that one worker would step it
    s * g_k        `mean`, and so `adaptive` for SGD and momentum: each trains as if all batches were like its own

The learning rate is one worker's, whatever K is: for SGD, and momentum, scaling the gradient scales the step. The steps
of the others do not grow with the gradient, but for what epsilon and initial accumulator do, so for their rows
`--scale_lr` changes next to nothing.

Caveat: within a window a worker's state has only its own steps. See docs/staleness.md for what that costs.
"""

import numpy as np

from ctr_trainer.embedding.table.sparse_optimizers import OPTIMIZERS

MERGES = ("sum", "mean", "adaptive")


class Shares:
    """What part of its change of a row a worker sends.

    Attributes:
      bounds: float32[3, width], for each float of a row: the least and the most of the share that weights and sums
        have, and whether what slow averages have more than a K-th is added.
      l2_factor: what the share of a row's L2 is multiplied by: K where gradients count K times as much (`mean`).
    """

    def __init__(self, bounds, workers, beta, l2_factor):
        self.bounds, self._workers, self._beta, self.l2_factor = bounds, workers, beta, l2_factor

    def by_rates(self, rates):
        """-> float32[U], share(p): what part of its steps of a row one worker with all examples would make of it.

        Args:
          rates: float32[U], p: of the steps of a worker, the part that stepped the row.
        """
        at_least_one = 1 - (1 - rates) ** self._workers
        return np.divide(at_least_one, self._workers * rates, out=np.ones_like(rates), where=rates > 0)

    def of(self, share, steps):
        """-> float32[2, U]: the share before `bounds`, and what slow averages have more than a K-th.

        Args:
          share: float32[U], of `by_rates`.
          steps: int[U], in this window. None of a row, as where only float16 left something, is as one.
        """
        more = np.zeros_like(share)
        if self.bounds[2].any():
            steps, workers = np.maximum(steps, 1), self._workers
            # Where the share is 1 / K the fraction is 1.
            more[:] = ((1 - self._beta ** (share * workers * steps)) / (1 - self._beta**steps) - 1) / workers
        return np.stack([share, more])

    def by_float(self, shares):
        """float32[2, U] of `of` -> float32[U, width]"""
        least, most, counts = self.bounds
        return np.clip(shares[0][:, None], least, most) + shares[1][:, None] * counts


def shares(config, merge, workers):
    """-> Shares, or None where all of each change is sent.

    Args:
      config: a TableConfig.
      merge: of MERGES.
      workers: how many there are.
    """
    optimizer = OPTIMIZERS[config.optimizer.name]
    merge = _of(optimizer, merge)
    states = optimizer.by_float(config.dims)
    sums = [True] * config.weights + [state.sums for state in states]
    slow = [""] * config.weights + [state.kept if merge == "adaptive" else "" for state in states]
    least = 1.0 if merge == "sum" else 1 / workers
    most = 1 / workers if merge == "mean" else 1.0
    bounds = [
        (least, most, 0.0) if adds else (1 / workers, 1 / workers, float(bool(kept)))
        for adds, kept in zip(sums, slow, strict=True)
    ]
    bounds = np.array(bounds, np.float32)
    if (bounds[:, :2] == 1).all():
        return None
    (beta,) = {getattr(config.optimizer, kept) for kept in slow if kept} or {0.0}
    return Shares(np.ascontiguousarray(bounds.T), workers, beta, workers if merge == "mean" else 1)


def gradient_factor(optimizer, merge, workers, scale, sharing=1):
    """-> what each worker's gradient is multiplied by.

    Args:
      optimizer: its name.
      merge: of MERGES.
      workers: how many there are.
      scale: s, by which the job's learning rates grow with its workers.
      sharing: how many workers train the same copy of the rows: they add up, whatever the merge of the copies.
    """
    return scale / sharing if _of(OPTIMIZERS[optimizer], merge) == "mean" else scale / workers


def _of(optimizer, merge):
    """-> the merge, `mean` in place of `adaptive` where that is so."""
    if merge not in MERGES:
        raise ValueError(f"merge {merge!r} is not one of {', '.join(MERGES)}")
    return "mean" if merge == "adaptive" and not optimizer.is_scale_free else merge
