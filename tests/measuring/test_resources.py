"""Memory of this process, and a GPU by a stand-in for NVML, since there is no GPU to ask here."""

import sys
import types

import numpy as np
import pytest

from ctr_trainer.estimator.hooks.measuring_hooks import ResourcesHook
from ctr_trainer.system.measuring import resources
from tests.hooks.test_hooks import _run


class NVMLError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    """Two devices: 0 is busy for 50% and then 100% with 1 and then 3 GB, 1 cannot be asked."""
    answers = [(50, 1e9), (100, 3e9)]

    def of(handle, place):
        if handle != "0":
            raise NVMLError
        return answers[0][place]

    def memory(handle):
        used = of(handle, 1)
        if len(answers) > 1:
            answers.pop(0)
        return types.SimpleNamespace(used=used)

    def by_index(index):
        if index > 1:
            raise NVMLError
        return str(index)

    module = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=by_index,
        nvmlDeviceGetHandleByUUID=lambda name: {"GPU-a": "0"}[name],
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=of(handle, 0)),
        nvmlDeviceGetMemoryInfo=memory,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return module


@pytest.mark.parametrize(
    ("visible", "local_rank", "known"),
    [
        (None, 0, True),
        (None, 1, False),
        (None, 2, False),
        ("1,0", 1, True),
        ("1,0", 0, False),
        ("0", 1, False),
        ("GPU-a", 0, True),
    ],
)
def test_a_worker_asks_the_gpu_of_its_place_among_those_that_are_visible(nvml, monkeypatch, visible, local_rank, known):
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert resources.open_gpu(local_rank)() == ((0.5, 1e9) if known else None)


def test_without_the_binding_or_the_library_nothing_is_known_of_a_gpu(nvml, monkeypatch):
    def absent():
        raise NVMLError

    monkeypatch.setattr(nvml, "nvmlInit", absent)
    assert resources.open_gpu(0)() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert resources.open_gpu(0)() is None


def test_a_run_keeps_the_mean_of_how_busy_its_gpu_was_and_the_most_memory(nvml):
    hook = ResourcesHook(resources.open_gpu(0), every_n_steps=2)
    _run(lambda: [hook], steps=1)  # After the first step, and at the end.
    assert (hook.gpu_busy, hook.gpu_bytes) == (0.75, 3e9)


def test_the_memory_of_this_process_is_what_it_holds_and_there_need_be_no_gpu():
    hook, block = ResourcesHook(resources.no_gpu, every_n_steps=1), []
    before = resources.resident_bytes()

    def grow():
        block.append(np.ones(10_000_000))  # 80 MB
        return [hook]

    _run(grow, steps=2)
    assert hook.resident_bytes >= before + 70e6
    assert np.isnan(hook.gpu_busy) and np.isnan(hook.gpu_bytes)
