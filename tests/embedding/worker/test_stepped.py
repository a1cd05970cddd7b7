"""The rows that a sync has to send."""

import numpy as np
import pytest

from ctr_trainer.embedding.worker import copied_row_kernels
from ctr_trainer.embedding.worker.copied_row_kernels import IN_FLIGHT, STEPPED


@pytest.mark.parametrize("rows", [0, 1, 64, 1003])
@pytest.mark.parametrize("share", [0, 0.05, 0.5, 1])
def test_stepped_rows_are_found_whatever_else_their_state_says(rows, share):
    rng = np.random.default_rng(rows)
    stepped, in_flight = (rng.random(rows) < part for part in (share, 0.3))
    state = np.where(stepped, STEPPED, 0).astype(np.uint8) | np.where(in_flight, IN_FLIGHT, 0).astype(np.uint8)
    slots = np.full(np.count_nonzero(stepped), -1)
    assert copied_row_kernels.find_stepped(state, slots) == len(slots)
    assert slots.tolist() == [slot for slot in range(rows) if state[slot] & STEPPED]


def test_no_more_stepped_rows_are_found_than_there_is_room_for():
    """Another worker may step rows after they were counted."""
    slots = np.full(10, -1)
    assert copied_row_kernels.find_stepped(np.full(64, STEPPED), slots) == 10
    assert slots.tolist() == list(range(10))
