"""Merging of the changes that K workers made to a row between two syncs.

At its sync, worker k sends `share * (row_k - base_k)`, with a share for each float of the row. The service adds this
change to its row, and worker k continues from the sum. Pushes arrive one by one and each is applied once, so a merge
must be a sum of the changes that the workers send. All that a push knows of the other workers is their number K. Here a
worker stands for a group of workers that train one copy of the rows. Let w be the row before the window, w_k the row of
worker k, which updated it in n_k of its N steps since its last sync, and w' the row after the K syncs of the window:

    w' = w + sum_k share(p_k) (w_k - w),  share(p) = (1 - (1 - p)^K) / (K p),  share(0) = 1
    SGD and momentum:  w' = w + 1/K sum_k (w_k - w)

If each of K workers updates a row with probability p per step, the workers together make K p updates of the row per
step. One worker with all their examples would make 1 - (1 - p)^K updates: it updates the row once, no matter how many
of the K batches contain the key. share(p) is the ratio of the two. So a row that all workers update at each step gets
the mean of their changes; the sum would move it K times as far. A row that is rarely updated gets the sum; the mean
would reduce its steps to 1/K. p_k is estimated from all steps of worker k so far, see `RowFrequency`. An estimate from
only one window would be inaccurate for a row with few updates.

The optimizer state, see `sparse_optimizers.State`, is merged as follows:

    sums       acc of both Adagrads, n of FTRL                        like the weights
    averages   u of momentum; m, v, c1 and c2 of Adam; q of FTRL      s' = s + 1/K sum_k (s_k - s)
    v and c2 of Adam                          s' = s + 1/K sum_k (1 - beta2^M_k) / (1 - beta2^n_k) (s_k - s)

The changes of averages cannot be added: after n steps, s_k - s is about (beta^n - 1) s + (1 - beta^n) g, so the sum of
K such changes would subtract s K times. A share of 1/K gives a weighted mean of the workers' averages, with the weights
c1 and c2, no matter which workers updated the row; so m / c1 and v / c2 stay unbiased. But with a share of 1/K, v would
decay by only 1/K of the decay in one worker, and its last few squares would count too much. The n_k steps represent
M_k = K share(p_k) n_k steps, and with the formula above v decays as in M_k steps. m keeps the share 1/K: each worker
continues with the m of all workers, which by itself makes momentum last longer.

A worker multiplies g_k, the gradient of the mean loss of its own batch, by a factor. `--scale_lr` makes the job learn s
times as fast as one worker that trains on the batches of all K workers: s is 1, sqrt(K) or K, and with
`--accumulation_steps=A`, if accumulated batches count too, sqrt(K A) or K A.

    s / K * g_k    The K products add up to s times the gradient of the mean loss of all K batches. If only one worker
                   updates a row, the update equals that of one worker with all batches.
    s * g_k        SGD and momentum. Each worker trains as if the other batches were like its own. If there are only C
                   copies, each of which several workers train, it is s * C / K * g_k.

L2 of looked-up rows (`RowGradients`) is l2 * share(p) * w with s / K * g_k, and K * l2 * share(p) * w with s * g_k.
With l2 * w, K workers that all update a row would decay it, relative to its data, K times as much as one worker. If
there is one copy, L2 is l2 * w.

The learning rate is that of one worker for any K. For SGD and momentum, scaling the gradient scales the step. The steps
of the other optimizers do not grow with the gradient, except for the effects of epsilon and the initial accumulator, so
`--scale_lr` changes almost nothing for their rows.

Caveat: within a window a worker's optimizer state contains only its own steps. docs/staleness.md reports the cost.
"""

import numpy as np
from numba import types

from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.index.key_kernels import kernel
from ctr_trainer.embedding.memory.growable_array import GrowableArray, TableMemory
from ctr_trainer.embedding.store.versions import POSITIONS_OUT, VERSIONS_OUT
from ctr_trainer.embedding.table.sparse_optimizers import OPTIMIZERS
from ctr_trainer.embedding.table.table_config import TableConfig

_MOST_STEPS = 2**16 - 1
_STEPS_OUT = types.Array(types.uint16, 1, "C")
_FLOATS_OUT = types.Array(types.float32, 1, "C")
# After this number of steps the counts of a row are halved, so that p follows a row that becomes frequent or rare.
_HALVED_STEPS = 512
# The indices of three step numbers: the current step, and the steps at which the last two windows began.
_NOW, _BEGAN, _LAST_BEGAN = range(3)


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


class RowFrequency:
    """Counts the steps of each row, and estimates p, the fraction of the worker's steps that update the row.

        p = (n - 1) / (T - 1)

    T is the number of the worker's steps since the beginning of the window of the row's first update, and n the number
    of these steps that updated the row. Both counts exclude one step: without it the row would not be here, so it
    contains no information about p. If T is 1, p is 0. An estimate from only one window would be inaccurate for small
    n; docs/staleness.md reports the cost. When T exceeds 512, n and T are halved.

    A slot is the index of a row, of at most `most_rows`. The steps of all workers that share `memory` are counted
    together. This class is not thread-safe.
    """

    def __init__(self, memory: TableMemory, most_rows: int) -> None:
        self._numbers = memory.counts("frequency", 3)
        self._steps = memory.array("steps", np.uint16, most_rows=most_rows)  # Since the last `take` of the row.
        self._met = memory.array("met", np.float32, most_rows=most_rows)  # n, up to the last `take`.
        self._since = memory.array("since", np.uint32, most_rows=most_rows)

    @property
    def arrays(self) -> tuple[GrowableArray, GrowableArray, GrowableArray]:
        """The arrays with one element per row, which is 0 for a new row."""
        return self._steps, self._met, self._since

    def step(self, slots: np.ndarray) -> None:
        """Counts a step of the rows at `slots`, C-contiguous int64[U]; -1 is skipped."""
        count_step(self._steps.array, slots)
        self._numbers[_NOW] += 1

    def begin_window(self) -> None:
        """Begins a window; `take` now ends the previous window."""
        self._numbers[[_LAST_BEGAN, _BEGAN]] = self._numbers[[_BEGAN, _NOW]]

    def take(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ends the window of the rows at `slots`, int64[U]. Returns (p, float32[U]; steps in the window, int64[U]).

        Steps that training makes between `begin_window` and `take` count for this window.
        """
        rates, steps = np.empty(len(slots), np.float32), np.empty(len(slots), np.int64)
        now, _, began = (int(number) for number in self._numbers)
        take_rates(
            self._steps.array, self._met.array, self._since.array, slots, now, began, _HALVED_STEPS, rates, steps
        )
        return rates, steps


class Shares:
    """The share of each change of a row that each of K workers sends.

    Attributes:
      bounds: float32[3, width]: for each float of a row, the lower bound of its share, the upper bound, and 1 if the
        float belongs to a slow average, whose share exceeds 1/K, else 0.
      l2_factor: the factor on the share of a row's L2: K if gradients count K times as much, else 1.
    """

    def __init__(self, config: TableConfig, workers: int) -> None:
        optimizer = OPTIMIZERS[config.optimizer.name]
        states, least = optimizer.by_float(config.dims), 1 / workers
        sums = (least, 1.0 if optimizer.is_scale_free else least, 0.0)
        averages = [(least, least, float(bool(state.kept) and workers > 1)) for state in states]
        by_float = [sums] * config.weights + [
            sums if state.sums else average for state, average in zip(states, averages, strict=True)
        ]
        self.bounds = np.ascontiguousarray(np.array(by_float, np.float32).T)
        self._workers = workers
        (self._beta,) = {getattr(config.optimizer, state.kept) for state in states if state.kept} or {0.0}
        self.l2_factor = 1 if optimizer.is_scale_free else workers

    def by_rates(self, rates: np.ndarray) -> np.ndarray:
        """Returns float32[U], share(p) of each row; `rates`, float32[U], are the values of p."""
        if self._workers == 1:
            return np.ones_like(rates)
        at_least_one = 1 - (1 - rates) ** self._workers
        return np.divide(at_least_one, self._workers * rates, out=np.ones_like(rates), where=rates > 0)

    def of(self, share: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Returns float32[2, U]: the share before `bounds`, and the excess over 1/K of the share of slow averages.

        `share` is the result of `by_rates`, and `steps`, int[U], are the steps of each row in this window. 0 counts as
        1.
        """
        more = np.zeros_like(share)
        if self.bounds[2].any():
            steps, workers = np.maximum(steps, 1), self._workers
            # If the share is 1 / K, the fraction is 1.
            more[:] = ((1 - self._beta ** (share * workers * steps)) / (1 - self._beta**steps) - 1) / workers
        return np.stack([share, more])


def gradient_factor(optimizer: str, workers: int, scale: float, copies: int) -> float:
    """Returns the factor on the gradient of each of K workers.

    Args:
      scale: s, the factor on learning rates of `--scale_lr`.
      copies: number of copies of the rows. The steps of workers that train the same copy add up, however many workers
        each copy has.
    """
    return scale * (1 if OPTIMIZERS[optimizer].is_scale_free else copies) / workers
