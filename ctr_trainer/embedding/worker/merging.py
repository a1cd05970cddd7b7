"""Merging of the changes that K workers made to a row between two syncs.

At its sync, worker k sends `share * (row_k - base_k)`, with a share for each float of the row. The service adds this
change to its row, and worker k continues from the sum. Pushes arrive one by one and each is applied once, so a merge
must be a sum of the changes that the workers send. All that a push knows of the other workers is their number K. Let w
be the row before the window, w_k the row of worker k, which updated it in n_k of its N steps since its last sync, and
w' the row after the K syncs of the window (`--sync_merge`):

    sum         w' = w + sum_k (w_k - w)
    mean        w' = w + 1/K sum_k (w_k - w)
    adaptive    w' = w + sum_k share(p_k) (w_k - w),  share(p) = (1 - (1 - p)^K) / (K p),  share(0) = 1
                SGD and momentum: as `mean`

If each of K workers updates a row with probability p per step, the workers together make K p updates of the row per
step. One worker with all their examples would make 1 - (1 - p)^K updates: it updates the row once, no matter how many
of the K batches contain the key. share(p) is the ratio of the two, and `adaptive` sends this share of each change. So a
row that all workers update at each step gets the mean of their changes; the sum would move it K times as far. A row
that is rarely updated gets the sum; the mean would reduce its steps to 1/K. p_k is estimated from all steps of worker k
so far, see `RowFrequency`. An estimate from only one window would be inaccurate for a row with few updates.

The optimizer state, see `sparse_optimizers.State`, is merged as follows:

    sums       acc of both Adagrads, n of FTRL                        like the weights
    averages   u of momentum; m, v, c1 and c2 of Adam; q of FTRL      s' = s + 1/K sum_k (s_k - s)
    v and c2 of Adam, if `adaptive`           s' = s + 1/K sum_k (1 - beta2^M_k) / (1 - beta2^n_k) (s_k - s)

The changes of averages cannot be added: after n steps, s_k - s is about (beta^n - 1) s + (1 - beta^n) g, so the sum of
K such changes would subtract s K times. A share of 1/K gives a weighted mean of the workers' averages, with the weights
c1 and c2, no matter which workers updated the row; so m / c1 and v / c2 stay unbiased. But with a share of 1/K, v would
decay by only 1/K of the decay in one worker, and its last few squares would count too much. The n_k steps represent
M_k = K share(p_k) n_k steps, and with the formula above v decays as in M_k steps. m keeps the share 1/K: each worker
continues with the m of all workers, which by itself makes momentum last longer.

A worker multiplies g_k, the gradient of the mean loss of its own batch, by a factor. `--scale_lr` makes the job learn s
times as fast as one worker that trains on the batches of all K workers: s is 1, sqrt(K) or K, and with
`--accumulation_steps=A`, if accumulated batches count too, sqrt(K A) or K A.

    s / K * g_k    `sum`, and `adaptive` except for SGD and momentum. The K products add up to s times the gradient of
                   the mean loss of all K batches. If only one worker updates a row, the update equals that of one
                   worker with all batches.
    s * g_k        `mean`, and so `adaptive` for SGD and momentum. Each worker trains as if the other batches were like
                   its own. If there are only C copies, each of which several workers train, it is s * C / K * g_k.

L2 of looked-up rows (`RowGradients`) is l2 * share(p) * w with s / K * g_k, and K * l2 * share(p) * w with s * g_k.
With l2 * w, K workers that all update a row would decay it, relative to its data, K times as much as one worker. If
there are no shares (`sum` of Adagrad, shared memory), L2 is l2 * w.

The learning rate is that of one worker for any K. For SGD and momentum, scaling the gradient scales the step. The steps
of the other optimizers do not grow with the gradient, except for the effects of epsilon and the initial accumulator, so
`--scale_lr` changes almost nothing for their rows.

Caveat: within a window a worker's optimizer state contains only its own steps. docs/staleness.md reports the cost.
"""

import numpy as np
from numba import types

from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.index.key_kernels import kernel
from ctr_trainer.embedding.store.versions import POSITIONS_OUT, VERSIONS_OUT
from ctr_trainer.embedding.table.sparse_optimizers import OPTIMIZERS, Optimizer
from ctr_trainer.embedding.table.table_config import TableConfig

_MOST_STEPS = 2**16 - 1
_STEPS_OUT = types.Array(types.uint16, 1, "C")
_FLOATS_OUT = types.Array(types.float32, 1, "C")
MERGES = ("sum", "mean", "adaptive")


@kernel(types.void(_STEPS_OUT, SLOTS))
def count_step(steps: np.ndarray, slots: np.ndarray) -> None:
    """Computes steps[slots[i]] += 1, up to the largest uint16; the slot -1 is skipped."""
    for i in range(slots.size):
        if slots[i] >= 0:
            steps[slots[i]] = min(steps[slots[i]] + 1, _MOST_STEPS)


@kernel(types.void(_STEPS_OUT, _FLOATS_OUT, VERSIONS_OUT, SLOTS, *(types.int64,) * 3, _FLOATS_OUT, POSITIONS_OUT))
def take_rates(
    steps: np.ndarray,
    met: np.ndarray,
    since: np.ndarray,
    slots: np.ndarray,
    now: int,
    began: int,
    most: int,
    rates: np.ndarray,
    taken: np.ndarray,
) -> None:
    """Ends the window of the rows at `slots`, see `RowFrequency`.

    Args:
      steps, met: the steps of each slot's row in this window and in earlier windows.
      since: for each slot, the worker's step at which the first of these windows began.
      now, began: the worker's current step, and its step at which this window began.
      most: n and T are halved when T exceeds this number of steps.
      rates, taken: outputs: p of each row, and its steps in this window.
    """
    for i in range(slots.size):
        slot = slots[i]
        taken[i] = steps[slot]
        if met[slot] == np.float32(0):
            since[slot] = began
        count, total = met[slot] + np.float32(steps[slot]), now - since[slot]
        rates[i] = np.float32(0)
        if total > 1:
            rates[i] = min(max((count - np.float32(1)) / np.float32(total - 1), np.float32(0)), np.float32(1))
        if total > most:
            count, since[slot] = count / np.float32(2), now - total // 2
        steps[slot], met[slot] = 0, count


class Shares:
    """The share of each change of a row that a worker sends.

    Attributes:
      bounds: float32[3, width]: for each float of a row, the lower bound of its share, the upper bound, and 1 if the
        float belongs to a slow average, whose share exceeds 1/K, else 0.
      l2_factor: the factor on the share of a row's L2: K if gradients count K times as much (`mean`), else 1.
    """

    def __init__(self, bounds: np.ndarray, workers: int, beta: float, l2_factor: float) -> None:
        self.bounds, self._workers, self._beta, self.l2_factor = bounds, workers, beta, l2_factor

    def by_rates(self, rates: np.ndarray) -> np.ndarray:
        """Returns float32[U], share(p) of each row; `rates`, float32[U], are the values of p."""
        at_least_one = 1 - (1 - rates) ** self._workers
        return np.divide(at_least_one, self._workers * rates, out=np.ones_like(rates), where=rates > 0)

    def of(self, share: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Returns float32[2, U]: the share before `bounds`, and the excess over 1/K of the share of slow averages.

        `share` is the result of `by_rates`, and `steps`, int[U], are the steps of each row in this window. 0 counts as
        1, for example for a row that is sent only for the rounding error of float16.
        """
        more = np.zeros_like(share)
        if self.bounds[2].any():
            steps, workers = np.maximum(steps, 1), self._workers
            # If the share is 1 / K, the fraction is 1.
            more[:] = ((1 - self._beta ** (share * workers * steps)) / (1 - self._beta**steps) - 1) / workers
        return np.stack([share, more])

    def by_float(self, shares: np.ndarray) -> np.ndarray:
        """Returns float32[U, width], the share of each float of each row, from the result of `of`."""
        least, most, counts = self.bounds
        return np.clip(shares[0][:, None], least, most) + shares[1][:, None] * counts


def shares(config: TableConfig, merge: str, workers: int) -> Shares | None:
    """Returns the `Shares` of a table's rows for K workers; None if workers send whole changes.

    Raises ValueError if `merge` is not one of MERGES.
    """
    optimizer = OPTIMIZERS[config.optimizer.name]
    merge = _of(optimizer, merge)
    states = optimizer.by_float(config.dims)
    sums = [True] * config.weights + [state.sums for state in states]
    slow = [""] * config.weights + [state.kept if merge == "adaptive" else "" for state in states]
    least = 1.0 if merge == "sum" else 1 / workers
    most = 1 / workers if merge == "mean" else 1.0
    by_float = [
        (least, most, 0.0) if adds else (1 / workers, 1 / workers, float(bool(kept)))
        for adds, kept in zip(sums, slow, strict=True)
    ]
    bounds = np.array(by_float, np.float32)
    if (bounds[:, :2] == 1).all():
        return None
    (beta,) = {getattr(config.optimizer, kept) for kept in slow if kept} or {0.0}
    return Shares(np.ascontiguousarray(bounds.T), workers, beta, workers if merge == "mean" else 1)


def gradient_factor(optimizer: str, merge: str, workers: int, scale: float, copies: int) -> float:
    """Returns the factor on the gradient of each of K workers.

    Args:
      merge: one of MERGES; else this raises ValueError.
      scale: s, the factor on learning rates of `--scale_lr`.
      copies: number of copies of the rows, whose mean `mean` takes. The steps of workers that train the same copy add
        up, however many workers each copy has.
    """
    return scale * (copies if _of(OPTIMIZERS[optimizer], merge) == "mean" else 1) / workers


def _of(optimizer: Optimizer, merge: str) -> str:
    """Returns `merge`, but `mean` instead of `adaptive` for SGD and momentum."""
    if merge not in MERGES:
        raise ValueError(f"merge {merge!r} is not one of {', '.join(MERGES)}")
    return "mean" if merge == "adaptive" and not optimizer.is_scale_free else merge
