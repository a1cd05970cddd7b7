"""Averages the dense variables every N steps, for local SGD."""

from ctr_trainer.hooks.step_hook import StepHook


class DenseSyncHook(StepHook):
    """Averages after every step whose number divides by `every_n_steps`, on all ranks at the same one.

    Checkpoints average first by themselves, and so does the end of training.

    Args:
      prepare: f(session), called before the first step.
      settle: f(session) that averages; a collective.
      every_n_steps: at least 1.
    """

    phase = "exchange"

    def __init__(self, prepare, settle, every_n_steps):
        super().__init__()
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, not {every_n_steps}")
        self._prepare, self._settle, self._every_n_steps = prepare, settle, every_n_steps

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._prepare(session)

    def after_step(self, run_context, run_values):
        if self.step % self._every_n_steps == 0:
            self._settle(run_context.session)
