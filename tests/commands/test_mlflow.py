"""A training in a run of MLflow, on a real server."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from unittest import mock

import pytest

from ctr_trainer import cli
from ctr_trainer.commands.experiment import mlflow_run
from ctr_trainer.commands.experiment.mlflow_run import MlflowRun
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes.child import ended_with_parent
from tests import small
from tests.ports import free_port

mlflow = pytest.importorskip("mlflow", reason="no MLflow: pip install mlflow-skinny aiohttp")


@pytest.fixture(autouse=True)
def _environment():
    """Restores the environment, in which a training and MLflow set variables for this process."""
    with mock.patch.dict(os.environ):
        yield


@contextlib.contextmanager
def server(directory):
    """Yields the process of a server of MLflow, which MLFLOW_TRACKING_URI names."""
    pytest.importorskip("aiohttp", reason="no server of MLflow: pip install aiohttp")
    port = free_port()
    flags = f"--backend-store-uri=sqlite:///{directory}/runs.db --artifacts-destination={directory}/files"
    flags += f" --port={port} --workers=1"
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(directory / "log", "w") as log, pytest.MonkeyPatch.context() as patch:
        command = [sys.executable, "-m", "mlflow", "server", *flags.split()]
        how = {"start_new_session": True, "preexec_fn": ended_with_parent()}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, **how)
        try:
            patch.setenv("MLFLOW_TRACKING_URI", uri := f"http://127.0.0.1:{port}")
            while True:
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{uri}/health"):
                    break
                assert process.poll() is None, (directory / "log").read_text()
                time.sleep(0.2)
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()


@pytest.mark.integration
@pytest.mark.slow
def test_a_training_and_what_resumes_it_are_one_run_with_settings_and_metrics(tmp_path, caplog):
    data, model = small.make(tmp_path, rows=300), tmp_path / "model"
    flags = [f"--train_data={data}", f"--eval_data={data}", f"--model_dir={model}", "--track=mlflow", "--log_steps=5"]
    (tmp_path / "server").mkdir()
    with server(tmp_path / "server") as process:
        for epochs in (1, 2):
            arguments = [*flags, "--recipe=none", "--batch_size=30", "--hidden_units=8", f"--epochs={epochs}"]
            assert cli.main(["train", *arguments]) == 0
        (run,) = mlflow.MlflowClient().search_runs(["0"])
        assert run.info.status == "FINISHED" and run.info.run_name == "model"
        assert run.data.params["batch_size"] == "30" and run.data.params["workers"] == "1"
        history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "train/xentropy_mean")
        assert [each.step for each in history] == [5, 10, 15, 20]
        assert 0 < run.data.metrics["eval/auc"] < 1
        assert "Step 20 of the training" in run.data.tags["mlflow.note.content"]
        files = {each.path for each in mlflow.MlflowClient().list_artifacts(run.info.run_id)}
        assert files == {"flags.json", "features.json", "evaluations.json", "train_summary.json"}
        with MlflowRun(str(tmp_path / "other"), {}) as other:
            mlflow_run._log.addHandler(caplog.handler)  # The command's log does not reach the root.
            os.killpg(process.pid, 9)
            process.wait()
            other.send({"train/auc": 0.5, "train/copc": float("nan")}, 1)
    mlflow_run._log.removeHandler(caplog.handler)
    assert "MLflow has not taken 1 metrics; metrics.jsonl has them" in caplog.messages


@pytest.mark.parametrize("scheme", ["http", "no-store"])
def test_a_server_that_is_not_there_is_named_at_the_start(tmp_path, monkeypatch, scheme):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := f"{scheme}://127.0.0.1:{free_port()}")
    with pytest.raises(UserError, match=rf"no run at {uri}: .*; correct MLFLOW_TRACKING_URI"):
        MlflowRun(str(tmp_path), {})


def test_a_retry_after_refused_settings_continues_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    before, model = dict(os.environ), str(tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "log_batch", lambda *_, **__: 1 / 0)
        with pytest.raises(UserError, match="no run at .*: division by zero"):
            MlflowRun(model, {"batch_size": 30})
    assert mlflow.active_run() is None
    with MlflowRun(model, {"batch_size": 30}):
        pass
    with MlflowRun(model, {"batch_size": 40}):  # A training that resumes.
        pass
    (run,) = mlflow.MlflowClient().search_runs(["0"])
    assert (run.info.status, run.data.params) == ("FINISHED", {"batch_size": "30"})
    assert os.environ == before
