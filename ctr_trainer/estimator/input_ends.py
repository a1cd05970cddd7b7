"""Finds out that the input of one rank has ended before that of another."""

import contextlib

import tensorflow as tf

_KEY = "input_ended"
_AT_THE_END = (tf.errors.OutOfRangeError, StopIteration)


class InputEnds:
    """Counts the batches that this rank has read, and lets the other ranks know when there are no more.

    A rank without a batch leaves the training, and the others wait for it in the exchange of a step that it never
    makes. It cannot tell them by a collective: they are within another one. So it leaves a notice, which costs a step
    nothing; a rank that waits looks for it, and has proof where it has read more batches than that rank ever will.

    Args:
      notices: `Notices` of the job.
      rank: of this process.
      clock: `Clock` of the training thread.
    """

    def __init__(self, notices, rank, clock):
        self._notices, self._rank, self._clock = notices, rank, clock
        self._batches = 0

    def begin(self):
        """Removes what an earlier training has left; before the ranks meet."""
        self._notices.put(_KEY, "")

    def has_read(self):
        """Counts a batch."""
        self._batches += 1

    @contextlib.contextmanager
    def noticed(self):
        """Leaves the notice where the body of the `with`, a step, finds the input at its end."""
        try:
            yield
        except _AT_THE_END:
            self._notices.put(_KEY, f"{self._rank} {self._batches} {self._clock.step}")
            raise

    def problem(self):
        """-> why a step cannot end, a sentence; "" where it can."""
        notice = self._notices.get(_KEY)
        if not notice:
            return ""
        rank, batches, step = map(int, notice.split())
        if self._batches <= batches:
            return ""
        pad = "have the shorter inputs padded (RunConfig(uneven_inputs='pad'))" if batches else "give it at least one"
        return (
            f"rank {rank} has no batch for step {step}: its input has ended after {batches} batches, and rank "
            f"{self._rank} has read {self._batches}. All ranks need as many batches: {pad}, cut the longer inputs "
            "(Dataset.take), or repeat all of them (Dataset.repeat) and give max_steps"
        )
