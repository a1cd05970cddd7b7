"""Offers the dense tower to a publisher, now and then."""

import tensorflow as tf

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.periodic_hook import PeriodicHook
from ctr_trainer.hooks.periods import EverySeconds
from ctr_trainer.messages.errors import UserError

tf1 = tf.compat.v1
_LAST_SECONDS = 600.0
_SHARE_OF_GRACE = 3


class PublishHook(PeriodicHook):
    """Fetches the variables of the dense tower at the start, every `secs` seconds, and at the end; of rank 0 alone.

    Staleness: with several steps from one exchange of the dense variables to the next, the tower is that of rank 0.

    Args:
      publisher: has `offer(step, values)` and `finish(seconds)`.
      names: of the variables of the tower.
      secs: seconds between two fetches.
      is_stopping: f() -> whether a signal has asked the training to end.
      grace_secs: seconds that it may take then.
      clock: see `PeriodicHook`.
    """

    order = Order.PUBLISH

    def __init__(self, publisher, names, secs, is_stopping, grace_secs, clock=None):
        super().__init__(EverySeconds(secs), clock)
        self._publisher, self._names = publisher, names
        self._is_stopping, self._grace_secs = is_stopping, grace_secs

    def begin(self):
        super().begin()
        found = {variable.op.name: variable for variable in tf1.global_variables()}
        missing = sorted(set(self._names) - found.keys())
        if missing:
            raise UserError(
                f"--publish: the model predicts with the variable {missing[0]}, which its training does not have; have "
                "model_fn make the same variables in both modes"
            )
        self._variables = {name: found[name] for name in self._names}

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._offer(session)

    def act(self, run_context):
        self._offer(run_context.session)
        self._period.begin()

    def end(self, session):
        self._offer(session)
        with self._clock.within(self.phase):
            self._publisher.finish(self._grace_secs / _SHARE_OF_GRACE if self._is_stopping() else _LAST_SECONDS)

    def _offer(self, session):
        self._publisher.offer(self.step, session.run(self._variables))
