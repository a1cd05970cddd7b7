"""The programs of examples/, as their first lines say to run them."""

import contextlib
import json
import re
import shutil
import signal
import threading

import numpy as np
import psutil
import pytest
import tensorflow as tf

from ctr_trainer import cli
from ctr_trainer.checkpoint.checkpoint import newest_whole
from tests import checkpoints, graphs
from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.slow]
EXAMPLES = launch.ROOT / "examples"
LOOP_STEPS = 300  # 20 epochs of 30,000 rows, 1,024 of each of two workers


def _run(name, workers, *arguments, save_output=None, is_warm=True):
    """Returns the JSON line that rank 0 prints; writes what all ranks log to the file `save_output`.

    Each program is started once as users start it, without `is_warm`.
    """
    done = launch.run(workers, EXAMPLES / name, *arguments, is_warm=is_warm)
    if save_output:
        save_output.write_text(done.stderr)
    lines = [line.removeprefix("[0]<stdout>:") for line in done.stdout.splitlines()]
    (line,) = [line for line in lines if line.startswith("{")]
    return json.loads(line)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    data = tmp_path_factory.mktemp("clicks") / "data"
    assert cli.main(["convert", "--format=synthetic", "--rows=30000", f"--output={data}"]) == 0
    return data


def test_the_ported_program_has_the_losses_of_one_worker_on_two(tmp_path):
    losses = {}
    for workers in (0, 2):
        directory = tmp_path / f"model{workers}"
        result = _run("plain_estimator.py", workers, f"--model_dir={directory}", is_warm=workers > 0)
        assert result["global_step"] == 200
        assert result["auc"] > 0.7
        evaluations = json.loads((directory / "evaluations.json").read_text())["evaluations"]
        losses[workers] = [each["loss"] for each in evaluations]
    assert len(losses[0]) == 4
    np.testing.assert_allclose(losses[2], losses[0], atol=1e-5, rtol=0)


def test_a_model_with_embeddings_in_the_service_learns(clicks, tmp_path):
    result = _run("with_embeddings.py", 2, f"--data={clicks}", f"--model_dir={tmp_path / 'model'}", is_warm=False)
    assert result["global_step"] == 15  # 30,000 rows, 1,024 of each of two workers
    assert result["examples"] == 3000
    assert result["auc"] > 0.6


def test_six_steps_of_horovod_train_on_two_ranks_and_resume(clicks, tmp_path):
    arguments = ("horovod_six_steps.py", 2, f"--data={clicks}", f"--model_dir={tmp_path}")
    first = _run(*arguments, "--steps=40", is_warm=False)
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-20")  # 40 steps of two ranks
    before = _accumulators(tmp_path)
    second = _run(*arguments, "--steps=120")
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-60")
    # Adagrad's sums only grow, so that a run that began anew would have smaller ones somewhere. The losses cannot be
    # compared: each is of the last batch alone.
    for name, sums in _accumulators(tmp_path).items():
        assert (sums >= before[name]).all() and (sums > before[name]).any(), name
    assert first["loss"] < 0.65 and second["loss"] < 0.65
    assert "from ctr_trainer" not in (EXAMPLES / "horovod_six_steps.py").read_text()


def _accumulators(model_dir):
    """Returns Adagrad's sums of squared gradients in the newest checkpoint: dict of name -> array."""
    reader = tf.train.load_checkpoint(str(model_dir))
    found = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name.endswith("/Adagrad")}
    assert len(found) == 3, found
    return found


@pytest.fixture(scope="module")
def loops(clicks, tmp_path_factory):
    """(directory of a loop that was killed and restarted, directory of an undisturbed loop, output of each)."""
    killed, whole = (tmp_path_factory.mktemp("loop") / name for name in ("killed", "whole"))
    arguments = [f"--data={clicks}", "--epochs=20", "--save_checkpoints_steps=20", "--deterministic"]
    with pytest.MonkeyPatch.context() as patched:
        # The killed job starts as users start it, the others are forks of `warm.py`: results may differ in no digit.
        patched.setenv(graphs.OPTIMIZED, "1")
        patched.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
        with launch.start(2, EXAMPLES / "horovod_loop.py", *arguments, f"--model_dir={killed}", is_warm=False) as job:
            reading = threading.Thread(target=job.stdout.read)
            reading.start()
            manifests = (killed / "checkpoints").glob
            launch.wait_until(lambda: any(manifests("*/manifest.json")), "the first checkpoint")
            workers = [each for each in psutil.Process(job.pid).children(recursive=True) if _is_worker(each)]
            workers[0].send_signal(signal.SIGKILL)
            job.wait(launch.TIMEOUT_SECONDS)
            reading.join()
        assert job.returncode
        steps = sorted(int(path.parent.name.removeprefix("step-")) for path in manifests("*/manifest.json"))
        assert 20 <= steps[-1] < LOOP_STEPS
        printed = [
            _run("horovod_loop.py", 2, *arguments, f"--model_dir={path}", save_output=path.with_suffix(".log"))
            for path in (killed, whole)
        ]
    return killed, whole, printed


def _is_worker(process):
    with contextlib.suppress(psutil.Error):
        line = process.cmdline()
        return "HOROVOD_RANK" in process.environ() and any(part.endswith("horovod_loop.py") for part in line[:2])
    return False


def _model(directory):
    """Returns the dense variables and the rows of the newest checkpoint, by name."""
    checkpoint = newest_whole(str(directory))
    assert checkpoint.step == LOOP_STEPS
    return checkpoints.values(checkpoint)


def test_a_killed_own_loop_ends_as_an_undisturbed_one(loops):
    killed, whole, (printed, expected) = loops
    assert printed == expected
    assert printed["loss"] < 0.69
    found, wanted = _model(killed), _model(whole)
    assert found.keys() == wanted.keys()
    assert len(wanted["keys"]) > 10_000
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, name)
    log = loops[1].with_suffix(".log").read_text()
    assert re.search(rf"step {LOOP_STEPS}, auc = 0\.\d+ \(", log)
    assert re.search(rf"step {LOOP_STEPS}, xentropy_mean = 0\.\d+ \(.* examples/sec", log)


@pytest.mark.parametrize("half", ["dense.index", "*.arrow"])
def test_a_loop_of_ones_own_refuses_one_half_without_the_other(loops, clicks, tmp_path, half):
    (tmp_path / "checkpoints").mkdir()
    newest = sorted((loops[1] / "checkpoints").glob("step-*"))[-1]
    shutil.copytree(newest, tmp_path / "checkpoints" / newest.name)
    lost = next((tmp_path / "checkpoints" / newest.name).rglob(half))
    lost.unlink()
    done = launch.run(0, EXAMPLES / "horovod_loop.py", f"--data={clicks}", f"--model_dir={tmp_path}", check=False)
    assert done.returncode
    assert lost.name in done.stderr


def test_a_loop_of_ones_own_that_is_run_again_after_its_end_prints_nothing(clicks, tmp_path):
    arguments = (0, EXAMPLES / "horovod_loop.py", f"--data={clicks}", f"--model_dir={tmp_path}")
    assert json.loads(launch.run(*arguments).stdout.splitlines()[-1])["loss"] > 0
    assert launch.run(*arguments).stdout == ""


def test_an_own_loop_refuses_another_programs_variables(clicks, tmp_path):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-20"\n')
    done = launch.run(0, EXAMPLES / "horovod_loop.py", f"--data={clicks}", f"--model_dir={tmp_path}", check=False)
    assert done.returncode
    assert "model.ckpt-20, so another program trains in this directory" in done.stderr
