"""The queue of a scoring server: which requests are scored together, and which are refused."""

import concurrent.futures
import threading
import types

import numpy as np
import pytest

from ctr_trainer.export.raw_inputs import NUMBER, TEXTS, RawColumn, RawInputs
from ctr_trainer.live.scoring import batcher as batcher_module
from ctr_trainer.live.scoring.batcher import Batcher
from ctr_trainer.live.scoring.examples import Examples, block_of
from ctr_trainer.live.scoring.refusals import RequestRefused
from ctr_trainer.live.scoring.served_model import Freshness, Scored
from ctr_trainer.settings.command_flags import ScoreLimits

_SECONDS = 60
_NUMBER = RawInputs((RawColumn("price", NUMBER),), frozenset())


def _examples(count):
    return Examples.missing(_NUMBER, count)


def _scored(examples):
    return Scored({"p": np.zeros(examples.count)}, Freshness(1, 0, 0, 0.0), {})


def test_an_exception_beside_the_model_does_not_end_the_scoring_thread():
    failures = iter([RuntimeError("in on_batch"), None])

    def on_batch(scored, examples, waited):
        if (failure := next(failures)) is not None:
            raise failure

    batcher = Batcher(_scored, ScoreLimits(timeout_secs=_SECONDS), on_batch)
    with pytest.raises(RequestRefused, match="the model failed: RuntimeError; the server's log says more"):
        batcher.submit(_examples(1)).result(_SECONDS)
    assert batcher.submit(_examples(2)).result(_SECONDS).outputs["p"].shape == (2,)
    batcher.close()


def test_what_is_cancelled_makes_room_in_the_queue_and_is_not_scored():
    goes_on, began, counts = threading.Event(), threading.Event(), []

    def score(examples):
        counts.append(examples.count)
        began.set()
        assert goes_on.wait(_SECONDS)
        return _scored(examples)

    batcher = Batcher(score, ScoreLimits(max_queue=10, timeout_secs=_SECONDS))
    first = batcher.submit(_examples(1))
    assert began.wait(_SECONDS)
    late = [batcher.submit(_examples(5)), batcher.submit(_examples(4))]
    with pytest.raises(RequestRefused, match="9 examples wait; the limit is 10 examples"):
        batcher.submit(_examples(7))
    assert late[0].cancel() and late[1].cancel()
    last = batcher.submit(_examples(7))
    goes_on.set()
    assert [each.result(_SECONDS).outputs["p"].shape for each in (first, last)] == [(1,), (7,)]
    batcher.close()
    assert counts == [1, 7]


def test_a_batch_has_no_more_values_than_one_request_may_have():
    inputs = RawInputs((RawColumn("tags", TEXTS),), frozenset())
    short, long = (
        Examples(inputs, 1, (block_of(inputs.columns, {"tags": [["t"] * count]}, 50, "{}"),)) for count in (1, 50)
    )
    sizes, goes_on, began = [], threading.Event(), threading.Event()

    def score(examples):
        sizes.append(examples.count * sum(examples.widths))
        began.set()
        assert goes_on.wait(_SECONDS)
        return _scored(examples)

    class Limits(ScoreLimits):
        max_values = 100

    batcher = Batcher(score, Limits(timeout_secs=60.0))
    first = batcher.submit(short)
    assert began.wait(_SECONDS)
    futures = [batcher.submit(each) for each in (short, long, short, short)]
    goes_on.set()
    concurrent.futures.wait([first, *futures], _SECONDS)
    batcher.close()
    assert sizes == [1, 100, 2]


def test_a_request_is_refused_once_the_open_ones_take_half_of_the_timeout(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(batcher_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    batcher = Batcher(_scored, ScoreLimits(timeout_secs=1.0))
    for _ in range(3):
        batcher.note_open(_examples(1))
        now[0] += 0.1
        batcher.note_answered(_examples(1))
        now[0] += 100.0  # Time without open requests does not count.
    for _ in range(6):
        batcher.refuse_late()
        batcher.note_open(_examples(1))
    with pytest.raises(RequestRefused, match=r"the answer would take 1\.2 s, over 1 s \(timeout_secs\)"):
        batcher.refuse_late()
    for _ in range(6):
        batcher.note_answered(_examples(1))
    batcher.refuse_late()
    batcher.close()
