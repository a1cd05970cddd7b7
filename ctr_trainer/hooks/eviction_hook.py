"""Tells the store how far training is, for rows that go with time."""

from ctr_trainer.hooks.step_hook import StepHook


class EvictionHook(StepHook):
    """Sets the store's clock at the start and after every step whose number divides by `every_n_steps`.

    Rows that have expired by then go. Only rank 0 needs it; `lru` and `ttl_steps` are as exact as the period.

    Args:
      store: a `Store`.
      every_n_steps: at least 1.
    """

    def __init__(self, store, every_n_steps):
        super().__init__()
        self._store, self._every_n_steps = store, every_n_steps

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._store.advance(self.step)

    def after_step(self, run_context, run_values):
        if self.step % self._every_n_steps == 0:
            self._store.advance(self.step)
