"""Whether a served model says what the trained one does: raw values of a whole test split against `predict`."""

import contextlib
import json
import pathlib
import subprocess
import sys
import time
import urllib.request

import demo_job
import numpy as np
import pyarrow.parquet as pq

from ctr_trainer.data import synthetic
from ctr_trainer.data.convert import convert
from ctr_trainer.data.criteo import DENSE, SPARSE
from ctr_trainer.features.spec import FeatureSpec

ROWS = 500_000
_EXAMPLES = 512
_START_S, _END_S = 120.0, 30.0


def measure(directory):
    """-> {`served_auc_minus_trained`, `served_auc`, `served_at_most_apart`, the most that two probabilities differ}.

    A job of two workers trains on the demo's data and publishes; it ends. Then `predict` reads its checkpoint, and a
    server answers for the same test rows as raw values.
    """
    data, model, publication = (pathlib.Path(directory, name) for name in ("auc-data", "auc", "auc-publication"))
    spec = FeatureSpec.load(demo_job.ROOT / "configs" / "features" / "demo.toml")
    synthetic.SAMPLE_ROWS = ROWS // 10  # All test rows, as raw text beside the data.
    convert("synthetic", None, data, spec, rows=ROWS, progress=False)
    demo_job.train(data, model, f"--publish={publication}")
    output = model / "predictions.parquet"
    flags = (f"--model_dir={model}", f"--eval_data={data}/test", f"--output={output}")
    demo_job.call(sys.executable, "-m", "ctr_trainer", "predict", *flags)
    predicted = pq.read_table(output)
    labels, trained = (predicted[name].to_numpy() for name in ("label", "probabilities"))
    with _server(publication, model / "port") as address:
        served = np.concatenate([_scores(address, lines) for lines in _batches(data / synthetic.SAMPLE)])
    auc = synthetic.auc(labels, served)
    return {
        "served_auc_minus_trained": auc - synthetic.auc(labels, trained),
        "served_auc": round(auc, 6),
        "served_at_most_apart": float(np.abs(served - trained).max()),
    }


@contextlib.contextmanager
def _server(publication, port_file):
    """Gives the host:port of a scoring server, which ends with the block."""
    command = (sys.executable, "-m", "ctr_trainer", "score", f"--model={publication}", "--port=0")
    with subprocess.Popen([*command, f"--port_file={port_file}"], env=demo_job.environment()) as process:
        try:
            end = time.monotonic() + _START_S
            while not (port_file.exists() and _is_ready(port_file.read_text().strip())):
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"score is not ready after {_START_S:g} s, or has ended: {process.returncode}")
                time.sleep(0.1)
            yield port_file.read_text().strip()
        finally:
            process.terminate()
            process.wait(_END_S)


def _is_ready(address):
    try:
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=_END_S):
            return True
    except OSError:
        return False


def _batches(sample):
    lines = sample.read_text().splitlines()
    for first in range(0, len(lines), _EXAMPLES):
        yield [line.split("\t") for line in lines[first : first + _EXAMPLES]]


def _scores(address, lines):
    """-> float64[n], the server's probabilities of lines in Criteo's raw form."""
    _, *columns = zip(*lines, strict=True)
    inputs = {
        name: [float(value) if value else None for value in column]
        for name, column in zip(DENSE, columns[: len(DENSE)], strict=True)
    }
    inputs |= dict(zip(SPARSE, map(list, columns[len(DENSE) :]), strict=True))
    with urllib.request.urlopen(f"http://{address}/v1/models", timeout=_END_S) as found:
        (name,) = json.load(found)["models"]
    request = urllib.request.Request(
        f"http://{address}/v1/models/{name}:predict",
        json.dumps({"inputs": inputs}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_END_S) as answer:
        outputs = json.load(answer)["outputs"]
    return np.array(outputs["probabilities"] if isinstance(outputs, dict) else outputs)
