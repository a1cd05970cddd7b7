"""Writes checkpoints of the embedding rows and the dense variables of a model while it trains."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.checkpoint import checkpoint as checkpoints
from ctr_trainer.checkpoint import model_directory, retention
from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.estimator.built_model import TrainingJob
from ctr_trainer.estimator.feed import Feed
from ctr_trainer.estimator.run_length import RunLength
from ctr_trainer.models.params import params_of_training
from ctr_trainer.ranks import distributed
from ctr_trainer.system.files.paths import Advanced, path_of
from ctr_trainer.system.messages.errors import UserError, diverged, reason
from ctr_trainer.system.processes.waiting import Background

_log = logging.getLogger(__name__)
_CLOSE_SECONDS, _POLL_SECONDS = 5.0, 0.02


class Saving:
    """Writes checkpoints of the rows and the dense variables of one step.

    The steps wait while both are captured. A service then writes the rows in the background (without a service, they
    are written at once), and a thread of rank 0 writes the rest, the manifest last. If the previous checkpoint is still
    being written, the next one waits.

    `settle`: f(session, step), averages the dense variables of local SGD. A collective.

    `path`: the checkpoint from which the training resumes, or that `__call__` wrote last; None if there is none yet.
    """

    def __init__(
        self,
        job: TrainingJob,
        saver: tf1.train.Saver,
        feed: Feed,
        store: Store,
        run_length: RunLength,
        settle: Callable[[tf1.Session, int], None],
    ) -> None:
        self._job, self._saver, self._feed, self._store, self._settle = job, saver, feed, store, settle
        restored = self._last = job.checkpoint  # The next checkpoint may extend its chain. Only rank 0 updates it.
        self.path = restored.path if restored else None
        self._examples_before = restored.examples if restored else 0
        floats = (v for v in tf1.global_variables() if v.dtype.base_dtype.is_floating)
        self._finite = {v.op.name: tf.reduce_all(tf.math.is_finite(v)) for v in floats}
        self._negative_sampling = getattr(params_of_training(job.params), "negative_sampling", None)
        self._decay = run_length.decay()
        self._model = job.record.to_dict(feed.inputs.features if feed.inputs.fed else None)
        if restored:
            feed.new_keys.in_training = restored.model.get("new_keys", {})
        before, share = restored and restored.negative_sampling, self._negative_sampling
        if None not in (before, share) and before != share and distributed.is_chief():
            text = "training continues with negative_sampling=%g; until %s it was %g. Predictions are calibrated for %g"
            _log.warning(f"{text} from the next checkpoint on", share, self.path, before, share)
        self._begun_step, self._begun_path = restored.step if restored else None, self.path
        self._longest = max(1800.0, distributed.watchdog().timeout)
        self._writing = Background("the writing of a checkpoint", self._longest)

    def __call__(self, session: tf1.Session, step: int) -> str:
        """Writes the checkpoint of `step` unless it was already written. Returns its path. A collective.

        Raises ServiceLost, or UserError: the checkpoint cannot be written, a variable or a row is not finite, or
        variables differ between the ranks. The earlier checkpoints stay valid.
        """
        self.begin(session, step)
        self._wait()
        distributed.barrier("checkpoint_written")
        assert self._begun_path is not None
        self.path = self._begun_path
        return self.path

    def begin(self, session: tf1.Session, step: int) -> None:
        """Captures the rows and the dense variables of `step`, to be written in the background. A collective.

        Raises UserError, also if the previous checkpoint could not be written. The earlier checkpoints stay valid.
        """
        if step == self._begun_step:
            return
        self._settle(session, step)
        self._feed.flush()
        self._wait()
        # After this barrier the service has every rank's rows, and the previous checkpoint is written.
        examples = distributed.all_sum(np.array(self._feed.examples, np.int64), "checkpoint_examples")
        path = checkpoints.checkpoint_path(self._job.model_dir, step)
        if distributed.is_chief():
            self._begin_writing(session, path, step, self._examples_before + int(examples))
        # After this barrier rows and variables may change again.
        distributed.barrier("checkpoint_captured")
        self._begun_step, self._begun_path = step, path

    def look(self) -> None:
        """Raises the error of the writing thread if the thread has failed. Does not wait."""
        if not self._writing.is_busy:
            self._writing.wait()

    def close(self) -> None:
        """Waits a few seconds for a checkpoint that is being written. Also called after an error."""
        with contextlib.suppress(UserError):
            self._writing.close(_CLOSE_SECONDS)

    def _wait(self) -> None:
        """Waits until rank 0 has written the files of the last checkpoint. A collective."""

        def work(advanced: Advanced) -> None:
            deadline = time.monotonic() + self._longest
            while self._writing.is_busy and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                advanced(f"the files of the checkpoint {self._begun_path} are being written")
            self._writing.close(0)  # Raises an error if they are still not written.
            self._writing.wait()

        distributed.from_chief(work, "files_of_the_last_checkpoint")

    def _begin_writing(self, session: tf1.Session, path: str, step: int, examples: int) -> None:
        """Captures a checkpoint on rank 0, and starts the thread that writes it."""
        finite = session.run(self._finite) if self._finite else {}
        if bad := [name for name in finite if not finite[name]]:
            more = f" and {len(bad) - 1} more variables are" if len(bad) > 1 else " is"
            raise diverged(f"{bad[0]}{more} not finite at step {step}")
        self._check_lock()
        checkpoints.begin(path)
        base = retention.base_of_next(self._job.model_dir, self._last, self._job.config.full_checkpoint_every)
        with contextlib.ExitStack() as stack, _naming(path):
            directory = stack.enter_context(path_of(path).filled_locally())
            self._saver.save(session, str(directory / checkpoints.DENSE), write_meta_graph=False)
            position = self._feed.position_after(step - self._job.start)
            by_key = self._job.config.deterministic
            finish = self._store.begin_save(path, step, base.snapshot if base else None, by_key)
            # A row that changed before it was written would have another place in the file.
            written = finish() if by_key else None
            dense = stack.pop_all()

        def write() -> None:
            with _naming(path), dense:
                files = finish() if written is None else written
            with _naming(path):
                tables = retention.extend(path, files, base)
                self._check_lock()  # Writing may have taken minutes, in which another job may have taken the lock.
                made = Checkpoint(
                    path=path,
                    step=step,
                    tables=tables,
                    dense=[],
                    position=position,
                    examples=examples,
                    negative_sampling=self._negative_sampling,
                    model={**self._model, "new_keys": self._feed.new_keys.in_training},
                    decay=self._decay,
                    data_begin=self._job.data_begin,
                )
                self._last = checkpoints.commit(made)
                model_directory.point_tensorflow_to(self._job.model_dir, self._last)
            self._feed.committed(position)
            _log.info("saved the checkpoint of step %d: %s", step, path)
            retention.remove_old(self._job.model_dir, self._job.config.keep_checkpoint_max)
            self._job.staging.upload()

        self._writing.start(write)

    def _check_lock(self) -> None:
        if self._job.lock is not None:
            self._job.lock.check()


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Converts errors of the block to a UserError that names the checkpoint."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            f"the checkpoint {path} cannot be written: {reason(error)}; free some space there. The earlier checkpoints "
            "stay valid"
        ) from None
