"""The optimizer of rows that a test is given by name."""

import dataclasses

from ctr_trainer.settings.optimizers import ROW_OPTIMIZERS


def row_optimizer(name, **settings):
    """Returns the RowOptimizer with this name, and with the settings that it supports."""
    kind = ROW_OPTIMIZERS[name]
    own = {field.name for field in dataclasses.fields(kind)}
    return kind(**{setting: value for setting, value in settings.items() if setting in own})
