"""Lowers the learning rates when evaluations do not improve."""

import logging

import tensorflow as tf

from ctr_trainer.hooks.order import Order

_log = logging.getLogger(__name__)


class PlateauHook(tf.compat.v1.train.SessionRunHook):
    """Keeps a `Plateau`'s factor what the evaluations so far make of it, from the start of the session on.

    It stands in for the evaluation that it is about: f(session, step) -> whether training is to stop; a collective.

    Args:
      selection: `ModelSelection`, whose `falls` are the same on all ranks.
      plateau: `Plateau`.
    """

    order = Order.EVALUATE

    def __init__(self, selection, plateau):
        self._selection, self._plateau = selection, plateau

    def after_create_session(self, session, coord):
        if self._selection.falls:
            factor = self._plateau.set(session, self._selection.falls)
            _log.info("learning rates go on at %g of their full value, as the evaluations so far have it", factor)

    def __call__(self, session, step):
        before = self._selection.falls
        stop = self._selection(session, step)
        if self._selection.falls != before:
            factor = self._plateau.set(session, self._selection.falls)
            _log.info(
                "evaluation at step %d: no improvement; learning rates fall to %g of their full value", step, factor
            )
        return stop
