"""Saves both halves of a model while it trains."""

import contextlib
import logging
import time
from typing import Protocol

import numpy as np
import tensorflow as tf

from ctr_trainer.estimator import checkpoint as checkpoints
from ctr_trainer.estimator import model_directory, retention
from ctr_trainer.estimator.equal_variables import EqualVariables
from ctr_trainer.files.paths import path_of
from ctr_trainer.graph_notes.notes import notes
from ctr_trainer.hooks.sync_hooks import raise_if_lost
from ctr_trainer.messages.errors import ServiceLost, UserError, diverged, reason
from ctr_trainer.processes.background import Background
from ctr_trainer.ranks import distributed

tf1 = tf.compat.v1
_log = logging.getLogger(__name__)
_CLOSE_SECONDS, _LOOK_SECONDS = 5.0, 0.05


class DirectoryLock(Protocol):
    """The lock of a model directory."""

    def check(self) -> None:
        """Raises UserError if this process has lost the lock."""


class Saving:
    """Writes checkpoints of the rows and the dense variables of one step.

    The steps wait while both halves are captured. The service writes the rows, and a thread of rank 0 does the rest,
    beside the steps that follow; the manifest comes last. One checkpoint at a time: the next one waits for it.

    Args:
      saver: `tf.compat.v1.train.Saver` of the dense variables.
      feed: the `Feed` of the training.
      store: where the rows are.
      restored: the `Checkpoint` that training goes on from, or None.
      model_dir: where checkpoints are kept: a path or a URL.
      staging: `Staging` of the model directory, whose files are copied to it with each checkpoint.
      lock: the lock of the model directory, of rank 0; None of others.
      config: `RunConfig`.
      model: what makes the model's graph, see `ModelRecord.to_dict`.
      settle: f(session) after which the dense variables are what all steps made of them, on all ranks; a collective.
    """

    def __init__(self, saver, feed, store, restored, model_dir, staging, lock, config, model, settle):
        self._settle, self._staging, self._lock = settle, staging, lock
        self._saver, self._feed, self._store = saver, feed, store
        self._model_dir, self._config, self._model = model_dir, config, model
        self._start, self._examples_before = (restored.step, restored.examples) if restored else (0, 0)
        self._last = restored  # The checkpoint that the rows of the next one add to; rank 0's from the first save on.
        self._begun_path = self._last_path = restored.path if restored else None
        self._finite, self._equal = _finite_variables(), EqualVariables()
        self._negative_sampling = notes().negative_sampling
        self._decay = notes().run_length.decay(notes().step_plan.accumulation_steps)
        if restored and distributed.is_chief():
            _log_change(restored, self._negative_sampling)
        self._begun_step = None
        self._writing = Background("the writing of a checkpoint")

    def __call__(self, session, step):
        """Returns the path of the checkpoint of `step`, which is written when this returns. A collective.

        A step that was saved already is not saved again.

        Raises:
          UserError: it cannot be written, a variable or a row is not finite, or variables differ between the ranks; the
            checkpoints before it are whole.
          ServiceLost: the embedding service is gone, and all ranks have agreed on it.
        """
        self.begin(session, step)
        self._wait()
        raise_if_lost(self._store, distributed.all_sum(np.int64(self._store.lost is not None), "checkpoint_written"))
        self._last_path = self._begun_path
        return self._last_path

    def begin(self, session, step):
        """Captures both halves of `step`, and has them written beside the steps that follow. A collective.

        Raises:
          UserError, ServiceLost: as above, of this checkpoint or of the one before it.
        """
        if step == self._begun_step:
            return
        self._settle(session)
        self._equal.check(session, step)
        self._feed.flush()
        self._wait()
        # Also the barrier after which every rank's rows are at the service, and the checkpoint before is written.
        own = np.int64([self._feed.examples, self._store.lost is not None])
        examples, lost = distributed.all_sum(own, "checkpoint_examples")
        raise_if_lost(self._store, lost)
        self._last_path = self._begun_path
        path = checkpoints.checkpoint_path(self._model_dir, step)
        if distributed.is_chief():
            self._begin_writing(session, path, step, self._examples_before + int(examples))
        # The barrier after which rows and variables may change again.
        raise_if_lost(self._store, distributed.all_sum(np.int64(self._store.lost is not None), "checkpoint_captured"))
        self._begun_step, self._begun_path = step, path

    def look(self):
        """Raises what the writing beside the steps has raised, once that has ended."""
        if not self._writing.is_busy:
            self._writing.wait()

    def close(self):
        """Ends, also after an error: what is still to be written of a checkpoint gets a few seconds."""
        with contextlib.suppress(UserError):
            self._writing.close(_CLOSE_SECONDS)

    def _wait(self):
        with distributed.watchdog().waiting("the files of the last checkpoint"):
            self._writing.wait()

    @property
    def path(self):
        """Of the last checkpoint, also if it is the one that training goes on from; None before the first."""
        return self._last_path

    @contextlib.contextmanager
    def naming_the_last_checkpoint(self, has_trained):
        """Has what ends the training within the block say where it goes on.

        Args:
          has_trained: f() -> whether a step was done; before that nothing is added.
        """
        try:
            yield
        except ServiceLost:
            raise  # `Estimator.train` says so, or goes on.
        except UserError as error:
            if not has_trained():
                raise
            self._wait_for_begun()
            last = f"There is no checkpoint in {self._model_dir} yet: the same command starts from the beginning"
            if self._last_path:
                last = f"The last checkpoint is {self._last_path}: the same command goes on from it"
            raise UserError(f"{str(error).rstrip('.')}. {last}") from None

    def _wait_for_begun(self):
        """Has ranks besides 0 know, before they name the last checkpoint, whether the one that was begun is written."""
        if distributed.is_chief() or self._begun_path == self._last_path:
            return
        manifest, deadline = path_of(self._begun_path) / checkpoints.MANIFEST, time.monotonic() + _CLOSE_SECONDS
        while time.monotonic() < deadline:
            if manifest.exists():
                self._last_path = self._begun_path
                return
            time.sleep(_LOOK_SECONDS)

    def _begin_writing(self, session, path, step, examples):
        """Captures a checkpoint, and has it written by the thread beside the steps."""
        self._refuse_not_finite(session, step)
        self._lock.check()
        checkpoints.begin(path)
        base = retention.base_of_next(self._model_dir, self._last, self._config.full_checkpoint_every)
        with contextlib.ExitStack() as dense, _told_of(path):
            directory = dense.enter_context(path_of(path).filled_locally())
            self._saver.save(session, str(directory / checkpoints.DENSE), write_meta_graph=False)
            position = self._feed.position_after(step - self._start)
            finish = self._store.begin_save(path, step, base.snapshot if base else None)
            dense = dense.pop_all()

        def write():
            with _told_of(path), dense:
                files = finish()
            if self._store.lost:
                return  # All ranks will know at their next sync.
            with _told_of(path):
                tables = retention.extend(path, files, base)
                self._lock.check()  # Writing may have taken minutes, in which another job may have taken the lock.
                self._last = checkpoints.commit(
                    path, step, tables, position, examples, self._negative_sampling, self._model, self._decay
                )
                model_directory.point_tensorflow_to(self._model_dir, self._last)
            self._last_path = path
            _log.info("saved the checkpoint of step %d: %s", step, path)
            retention.remove_old(self._model_dir, self._config.keep_checkpoint_max)
            self._staging.upload()

        self._writing.start(write)

    def _refuse_not_finite(self, session, step):
        finite = session.run(self._finite) if self._finite else {}
        bad = [name for name in finite if not finite[name]]
        if bad:
            more = f" and {len(bad) - 1} more variables are" if len(bad) > 1 else " is"
            raise diverged(f"{bad[0]}{more} not finite at step {step}")


@contextlib.contextmanager
def _told_of(path):
    """Says which checkpoint cannot be written."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            f"the checkpoint {path} cannot be written: {reason(error)}; make room there. The checkpoints before it are "
            "whole"
        ) from None


def _finite_variables():
    """Returns for each variable of floats, by name, the boolean tensor of whether all of it is finite."""
    return {
        v.op.name: tf.reduce_all(tf.math.is_finite(v)) for v in tf1.global_variables() if v.dtype.base_dtype.is_floating
    }


def _log_change(restored, share):
    """Says so where training goes on with another share of the negative examples than the checkpoint had."""
    before = restored.negative_sampling
    if None not in (before, share) and before != share:
        _log.warning(
            "training goes on with --negative_sampling=%g; until %s it was %g. Predictions are calibrated for %g from "
            "the next checkpoint on",
            share,
            restored.path,
            before,
            share,
        )
