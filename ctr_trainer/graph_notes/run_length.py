"""Between which steps a run's learning rates run out: what its schedule, its log and its checkpoints have to know."""

import dataclasses

import tensorflow as tf

tf1 = tf.compat.v1
_KEY = ("ctr_trainer", "run length")  # No string, so that TensorFlow does not try to serialize what is under it.


@dataclasses.dataclass(frozen=True)
class Epochs:
    """The epochs of a rank's input in batches, as long as all of them are of this run's batch size and workers.

    Attributes:
      batches: of an epoch.
      before: batches that were read before the run's start; where earlier runs had other batch sizes or numbers of
        workers, how many it would have been with this run's.
    """

    batches: int
    before: int = 0


@dataclasses.dataclass(frozen=True)
class StepsOfEpochs:
    """Where the epochs of the data begin, in global steps.

    Attributes:
      steps: optimizer steps of an epoch; no integer if a step of several batches goes over the end of an epoch.
      first: the global step that the first epoch begins at; not 0 where a run goes on with another batch size or
        another number of workers: then it is where it would have begun at the run's pace.
    """

    steps: float = 1.0
    first: float = 0.0


@dataclasses.dataclass(frozen=True)
class RunLength:
    """The steps of a run, as far as they are known before it starts; the same on all ranks.

    Attributes:
      begin: the global step that the run's schedule begins at: 0, and for a run that goes on after one that had come to
        its end, the step of that end.
      start: the global step that this process goes on from; `begin` or later.
      batches: how many batches each rank's input has from `start` on; None if the input does not say.
      last: the global step to stop at; None if there is none.
      earlier_end: the end that the run had when its checkpoint was written; None without one, or if it was not known.
      epochs: `Epochs`; None if the input does not say.
    """

    begin: int = 0
    start: int = 0
    batches: int | None = None
    last: int | None = None
    earlier_end: int | None = None
    epochs: Epochs | None = None

    def end(self, accumulation_steps=1):
        """-> the global step that the run ends at; None if it is not known.

        Args:
          accumulation_steps: batches of an optimizer step.
        """
        ends = [] if self.batches is None else [self.start - (-self.batches // accumulation_steps)]
        ends += [] if self.last is None else [self.last]
        return min(ends, default=None)

    def steps_of_epochs(self, accumulation_steps=1):
        """-> `StepsOfEpochs`; None if the input does not say how many batches an epoch has.

        Args:
          accumulation_steps: batches of an optimizer step.
        """
        if self.epochs is None:
            return None
        first = self.start - self.epochs.before / accumulation_steps
        return StepsOfEpochs(self.epochs.batches / accumulation_steps, first)

    def epochs_done(self, step, accumulation_steps=1):
        """-> how many whole epochs are over after a global step; the input must know its epochs.

        Args:
          step: `start` or later.
          accumulation_steps: batches of an optimizer step.
        """
        return (self.epochs.before + (step - self.start) * accumulation_steps) // self.epochs.batches

    def decay(self, accumulation_steps=1):
        """-> what a checkpoint keeps of it, {`begin`, `end`}."""
        return {"begin": self.begin, "end": self.end(accumulation_steps)}


def going_on(checkpoint, batches, last, epochs=None):
    """-> the RunLength of a training that goes on from a checkpoint, or starts without one.

    Args:
      checkpoint: `Checkpoint` or None.
      batches, last, epochs: see `RunLength`.
    """
    if checkpoint is None:
        return RunLength(batches=batches, last=last, epochs=epochs)
    before = checkpoint.decay or {"begin": 0, "end": None}
    came_to_its_end = before["end"] is not None and checkpoint.step >= before["end"]
    begin = checkpoint.step if came_to_its_end else before["begin"]
    return RunLength(begin, checkpoint.step, batches, last, before["end"], epochs)


def record(length):
    """Keeps the length of the run that the current graph trains."""
    tf1.get_default_graph().clear_collection(_KEY)
    tf1.add_to_collection(_KEY, length)


def current():
    """-> the `RunLength` of the current graph; one that knows nothing where none was recorded."""
    lengths = tf1.get_collection(_KEY)
    return lengths[0] if lengths else RunLength()
