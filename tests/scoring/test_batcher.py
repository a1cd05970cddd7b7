"""The queue of a scoring server: which requests are scored together, and which are refused."""

import asyncio
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


def _in_loop(run, score, limits, *rest, is_local=True):
    """Runs `run(batcher)` in an event loop; returns its result."""
    batcher = Batcher(score, limits, lambda: is_local, *rest)
    try:
        return asyncio.run(asyncio.wait_for(run(batcher), _SECONDS))
    finally:
        batcher.close()


def _held(size=lambda examples: examples.count):
    """Returns a score function that notes the size of each batch and waits, the sizes, its first call, its go-ahead."""
    sizes, began, goes_on = [], threading.Event(), threading.Event()

    def score(examples):
        sizes.append(size(examples))
        began.set()
        assert goes_on.wait(_SECONDS)
        return _scored(examples)

    return score, sizes, began, goes_on


@pytest.mark.parametrize("is_local", (True, False))
def test_an_exception_beside_the_model_does_not_end_the_scoring(is_local):
    failures = iter([RuntimeError("in on_batch"), None])

    def on_batch(scored, examples, waited):
        if (failure := next(failures)) is not None:
            raise failure

    async def run(batcher):
        with pytest.raises(RequestRefused, match="the model failed: RuntimeError; the server's log says more"):
            await batcher.submit(_examples(1))
        assert (await batcher.submit(_examples(2))).outputs["p"].shape == (2,)

    _in_loop(run, _scored, ScoreLimits(timeout_secs=_SECONDS), on_batch, is_local=is_local)


@pytest.mark.parametrize(("is_local", "threads"), ((True, 1), (True, 2), (False, 1)))
def test_one_thread_and_local_rows_are_scored_by_the_event_loop(is_local, threads):
    names, counts = set(), []

    def score(examples):
        names.add(threading.current_thread().name)
        counts.append(examples.count)
        return _scored(examples)

    async def run(batcher):
        found = await asyncio.gather(*(batcher.submit(_examples(count)) for count in (1, 2, 250, 7)))
        assert [each.outputs["p"].shape for each in found] == [(1,), (2,), (250,), (7,)]

    _in_loop(run, score, ScoreLimits(timeout_secs=_SECONDS, threads=threads), is_local=is_local)
    is_in_loop = names == {threading.current_thread().name}
    assert is_in_loop == (is_local and threads == 1)
    assert sum(counts) == 260
    if is_in_loop:
        assert counts == [253, 7]  # Whole requests, of at most 256 examples together.


def test_the_event_loop_gathers_what_arrives_in_its_next_turns_but_not_for_long(monkeypatch):
    now, counts = [0.0], []
    monkeypatch.setattr(batcher_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def score(examples):
        counts.append(examples.count)
        return _scored(examples)

    async def run(batcher):
        futures = []
        for seconds in (0.0, 0.0, 0.0, 0.002, 0.0):  # The fourth turn is too late for the batch.
            now[0] += seconds
            futures.append(batcher.submit(_examples(1)))
            await asyncio.sleep(0)
        await asyncio.gather(*futures)

    _in_loop(run, score, ScoreLimits(timeout_secs=_SECONDS))
    assert counts == [4, 1]


@pytest.mark.parametrize("is_local", (True, False))
def test_a_request_that_waits_behind_a_slow_batch_for_too_long_is_not_scored(monkeypatch, is_local):
    now = [0.0]
    monkeypatch.setattr(batcher_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    held, counts, _, goes_on = _held()

    def score(examples):
        scored = held(examples)
        now[0] += 2.0
        return scored

    async def run(batcher):
        first, second = (batcher.submit(_examples(count)) for count in (200, 100))
        goes_on.set()
        assert (await first).outputs["p"].shape == (200,)
        with pytest.raises(RequestRefused, match=r"not scored within 1 s \(timeout_secs\)"):
            await second
        assert (await batcher.submit(_examples(3))).outputs["p"].shape == (3,)

    _in_loop(run, score, ScoreLimits(timeout_secs=1.0), is_local=is_local)
    assert counts == [200, 3]


def test_what_arrives_during_a_batch_of_the_loop_is_read_before_the_next():
    read = []

    def score(examples):
        if examples.count == 200:
            asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(read.append, "read"))
        else:
            read.append(examples.count)
        return _scored(examples)

    async def run(batcher):
        await asyncio.gather(*(batcher.submit(_examples(count)) for count in (200, 100)))

    _in_loop(run, score, ScoreLimits(timeout_secs=_SECONDS))
    assert read == ["read", 100]


def test_what_is_cancelled_makes_room_in_the_queue_and_is_not_scored():
    score, counts, began, goes_on = _held()

    async def run(batcher):
        first = batcher.submit(_examples(1))
        assert await asyncio.to_thread(began.wait, _SECONDS)
        late = [batcher.submit(_examples(5)), batcher.submit(_examples(4))]
        with pytest.raises(RequestRefused, match="9 examples wait; the limit is 10 examples"):
            batcher.submit(_examples(7))
        assert late[0].cancel() and late[1].cancel()
        last = batcher.submit(_examples(7))
        goes_on.set()
        assert [(await each).outputs["p"].shape for each in (first, last)] == [(1,), (7,)]

    _in_loop(run, score, ScoreLimits(max_queue=10, timeout_secs=_SECONDS), is_local=False)
    assert counts == [1, 7]


def test_a_request_that_is_cancelled_while_it_is_scored_harms_no_other():
    score, _, began, goes_on = _held()

    async def run(batcher):
        first = batcher.submit(_examples(1))
        assert await asyncio.to_thread(began.wait, _SECONDS)
        assert first.cancel()
        last = batcher.submit(_examples(2))
        goes_on.set()
        assert (await last).outputs["p"].shape == (2,)

    _in_loop(run, score, ScoreLimits(timeout_secs=_SECONDS), is_local=False)


@pytest.mark.parametrize("is_local", (True, False))
def test_a_batch_has_no_more_values_than_one_request_may_have(is_local):
    inputs = RawInputs((RawColumn("tags", TEXTS),), frozenset())
    short, long = (
        Examples(inputs, 1, (block_of(inputs.columns, {"tags": [["t"] * count]}, 50, "{}"),)) for count in (1, 50)
    )
    score, sizes, began, goes_on = _held(lambda examples: examples.count * sum(examples.widths))

    class Limits(ScoreLimits):
        max_values = 100

    async def run(batcher):
        futures = [batcher.submit(short)]
        if not is_local:
            assert await asyncio.to_thread(began.wait, _SECONDS)
        futures += [batcher.submit(each) for each in (short, long, short, short)]
        goes_on.set()
        await asyncio.gather(*futures)

    _in_loop(run, score, Limits(timeout_secs=60.0), is_local=is_local)
    assert sizes == ([2, 100, 1] if is_local else [1, 100, 2])


def test_a_request_is_refused_once_the_open_ones_take_half_of_the_timeout(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(batcher_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    batcher = Batcher(_scored, ScoreLimits(timeout_secs=1.0), lambda: True)
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
