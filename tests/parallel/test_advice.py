"""The advice at the end of jobs that are slow for a known reason."""

import contextlib
import json
import os
import subprocess
import sys

import pytest

from tests import small
from tests.parallel import launch

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.make(tmp_path_factory.mktemp("advice"), rows=2560)


def _advice(situation, data, directory, workers=2):
    """Returns the advice that a job in this situation gets."""
    out = directory / "advice.json"
    arguments = [f"--situation={situation}", f"--data={data}", f"--model_dir={directory / 'model'}", f"--out={out}"]
    # A warm program has a session of its own, for which Linux keeps a share of the core, whatever others want.
    launch.run(workers, launch.WORKERS / "advice.py", *arguments, is_warm=situation != "load")
    return json.loads(out.read_text())


def test_a_rank_that_sleeps_in_its_steps_is_named_with_where(data, tmp_path):
    advice = _advice("slow", data, tmp_path)
    assert advice["flag"] == "a faster rank 1"
    assert advice["share"] > 0.25 and "mostly for its metrics and logs" in advice["why"]


def test_a_core_at_several_times_its_load_is_named(data, tmp_path):
    core = max(os.sched_getaffinity(0))
    spin = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            process = stack.enter_context(subprocess.Popen(spin))
            stack.callback(process.kill)
        advice = _advice("load", data, tmp_path, workers=0)
    assert advice["flag"] == "free cores" and advice["share"] > 0.7
