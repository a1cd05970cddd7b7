"""Trains on a random share of the negative examples, drawn anew in each epoch."""

import dataclasses

import numpy as np


class NegativeSampling:
    """The batches of a `BatchReader`, in which each negative example counts with the probability `share`.

    An example that does not count gets weight 0 and loses its keys, so no row is looked up or trained for it. It keeps
    its place in the batch. So the number of steps per worker and the position to go on from stay the same. Whether an
    example counts is a function of the seed, the epoch and the example's place in the epoch's order. Neither the number
    of workers, nor the batch size, nor a restart changes it.

    Caveat: the dense tower computes the examples that do not count all the same.

    Args:
      reader: a `BatchReader` for training.
      share: probability with which a negative example counts, above 0, up to 1.
      rank: rank of the worker that reads the batches.
      seed: seed of the draws.
    """

    def __init__(self, reader, share, rank, seed):
        self._reader, self._share, self._rank, self._seed = reader, share, rank, seed
        self.spec, self.statistics, self.batch_size = reader.spec, reader.statistics, reader.batch_size

    @property
    def steps(self):
        """As the reader's."""
        return self._reader.steps

    @property
    def rows(self) -> int:
        """As the reader's."""
        return self._reader.rows

    @property
    def steps_per_epoch(self):
        """As the reader's."""
        return self._reader.steps_per_epoch

    @property
    def steps_before(self):
        """As the reader's."""
        return self._reader.steps_before

    @property
    def epochs(self):
        """As the reader's."""
        return self._reader.epochs

    def position_after(self, steps):
        """As the reader's."""
        return self._reader.position_after(steps)

    def __iter__(self):
        for number, batch in enumerate(self._reader):
            counts = batch.labels > 0.5
            position = self._reader.position_after(number)
            places = _first(position["shares"][self._rank], batch.size)
            counts[: batch.size] |= self._draws(position["epoch"], places) < self._share
            yield _without(batch, ~counts)

    def _draws(self, epoch, places):
        """int64[n] -> float64[n], uniform from 0 to 1."""
        (stream,) = np.random.SeedSequence((self._seed, epoch, 1)).generate_state(1, np.uint64)
        return (_mixed(_mixed(places.astype(np.uint64)) ^ stream) >> np.uint64(11)) * 2.0**-53


def _first(share, count):
    """-> int64[count], the first places of a share, a list of ranges."""
    ranges = [np.arange(start, min(stop, start + count)) for start, stop in share]
    return np.concatenate([*ranges, np.empty(0, np.int64)])[:count]


def _without(batch, left_out):
    """-> the batch, in which the examples that `left_out`, a bool[B], marks have weight 0 and no keys."""
    keys = {table: np.where(left_out[:, None], 0, of_table) for table, of_table in batch.keys.items()}
    bags = {
        name: dataclasses.replace(bag, values=np.where(np.repeat(left_out, np.diff(bag.splits)), 0, bag.values))
        for name, bag in batch.bags.items()
    }
    weights = np.where(left_out, np.float32(0), batch.weights)
    return dataclasses.replace(batch, keys=keys, bags=bags, weights=weights)


def _mixed(values):
    """The finalizer of SplitMix64, a bijection of uint64 (Steele et al., OOPSLA 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
