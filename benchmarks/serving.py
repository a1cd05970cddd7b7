"""Serving an export: CPU time of a request, and the memory that the export took. The last line is JSON.

DeepFM of workload W1's form (26 single-valued features of dim 16, 13 numbers, hidden layers of 256, 128 and 64) with a
table of `--rows` rows, all trained with Adagrad. Three processes, one after the other: one writes the checkpoint, one
exports it, one loads the export once and sends it requests of raw strings. A request's CPU time is that of all threads
of the process over many requests, the median over the rounds; requests by a session are what TensorFlow Serving makes.

| key of the last line | |
|---|---|
| `one_example_cpu_ms`, `batch_512_cpu_ms` | CPU milliseconds of a request, by a session |
| `one_example_signature_cpu_ms`, `batch_512_signature_cpu_ms` | by `tf.saved_model.load`'s signature, in Python |
| `export_peak_over_written` | the exporting process's peak resident memory over the bytes of the export |
| `export_seconds`, `load_seconds` | of the export, and of loading it for the session |

Example: python benchmarks/serving.py                              # 20 M rows: minutes, 6 GB of disk
         python benchmarks/serving.py --rows=200000 --rounds=3
         python benchmarks/serving.py --directory=/data/scratch     # where the disk has room
"""

import argparse
import concurrent.futures
import contextlib
import json
import multiprocessing
import pathlib
import statistics
import sys
import tempfile
import time

BATCH = 512
ONE_REQUESTS, BATCH_REQUESTS, WARMUP = 400, 40, 20
BLOCK = 1 << 18


def values_of(rows, fields):
    """-> how many distinct values each field has."""
    return -(-rows // fields)


def estimator(directory):
    """-> the Estimator of the benchmark's model."""
    from ctr_trainer.bench import workload as w1
    from ctr_trainer.estimator import Estimator, RunConfig
    from ctr_trainer.estimator.optimize import TrainOp
    from ctr_trainer.models import deepfm
    from ctr_trainer.models.params import ModelParams
    from ctr_trainer.ranks import distributed

    distributed.init()
    params = ModelParams(TrainOp("adagrad", w1.LEARNING_RATE), w1.HIDDEN_UNITS)
    return Estimator(deepfm.model_fn, str(directory / "model"), params, RunConfig(threads=1))


def write_checkpoint(directory, rows):
    """Trains one step, and writes a checkpoint of that with a table of `rows` rows."""
    from ctr_trainer.bench import workload as w1
    from ctr_trainer.embedding.snapshot import snapshot_writer
    from ctr_trainer.estimator import checkpoint as checkpoints

    trained = estimator(directory)
    trained.train(lambda: w1.W1Batches(BATCH, 1))
    before = trained.latest_checkpoint()
    (config,) = before.table_configs().values()
    path = checkpoints.checkpoint_path(trained.model_dir, before.step + 1)
    checkpoints.begin(path)
    files = snapshot_writer.write(path, ManyRows(config, rows), contextlib.nullcontext(), "serving", None, before.step)
    for entry in before.dense:
        (pathlib.Path(path) / entry["file"]).write_bytes((pathlib.Path(before.path) / entry["file"]).read_bytes())
    checkpoints.commit(path, before.step, files, before.position, before.examples, before.negative_sampling)


class ManyRows:
    """A `changes.Capture` of rows made up, of the keys of the values "0", "1", ... of each field of W1."""

    def __init__(self, config, rows):
        self.config, self.counts = config, None
        self._blocks = self._make(rows)

    def removed(self):
        return ()

    def read(self, _):
        return next(self._blocks, None)

    def _make(self, rows):
        import numpy as np
        import pyarrow as pa
        import tqdm

        from ctr_trainer.bench import workload as w1
        from ctr_trainer.features.hashing import keys

        rng, values = np.random.default_rng(0), values_of(rows, w1.FIELDS)
        with tqdm.tqdm(desc="writing a checkpoint", total=rows, unit=" rows", disable=not sys.stderr.isatty()) as bar:
            for number, feature in enumerate(w1.spec().sparse):
                last = min(values, rows - number * values)
                for first in range(0, last, BLOCK):
                    some = keys(feature.slot, pa.array(np.arange(first, min(first + BLOCK, last))))
                    yield some, w1.STDDEV * rng.standard_normal((len(some), self.config.width), np.float32), None
                    bar.update(len(some))


def export(directory):
    """-> the figures of the export."""
    start = time.perf_counter()
    path = pathlib.Path(estimator(directory).export_to(directory / "export"))
    seconds = time.perf_counter() - start
    written = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    # And not `getrusage`, whose peak is also that of the process that started this one.
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) * 1024
    return {
        "export_peak_over_written": peak / written,
        "export_peak_bytes": peak,
        "export_written_bytes": written,
        "export_seconds": seconds,
    }


def serve(directory, rows, rounds):
    """-> the figures of requests."""
    import tensorflow as tf
    from tensorflow.core.protobuf import config_pb2

    tf1 = tf.compat.v1
    path = str(directory / "export")
    with tf.Graph().as_default(), tf1.Session() as session:
        start = time.perf_counter()
        loaded = tf1.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
        figures = {"load_seconds": time.perf_counter() - start}
        names = list(loaded.inputs)
        # The session's C++ entry alone, as TensorFlow Serving calls it: `Session.run` and `make_callable` spend a
        # millisecond of Python on 39 inputs.
        call = session._make_callable_from_options(
            config_pb2.CallableOptions(
                feed=[loaded.inputs[name].name for name in names], fetch=[loaded.outputs["probabilities"].name]
            )
        )
        for what, batch, count in (("one_example", 1, ONE_REQUESTS), ("batch_512", BATCH, BATCH_REQUESTS)):
            requests = [[inputs[name] for name in names] for inputs in examples(rows, batch, count)]
            figures[f"{what}_cpu_ms"] = cpu_ms(lambda request: call(*request), requests, rounds, what)
    signature = tf.saved_model.load(path).signatures["serving_default"]
    for what, batch, count in (("one_example", 1, ONE_REQUESTS), ("batch_512", BATCH, BATCH_REQUESTS)):
        requests = [{name: tf.constant(values) for name, values in r.items()} for r in examples(rows, batch, count)]
        what = f"{what}_signature"
        figures[f"{what}_cpu_ms"] = cpu_ms(lambda request: signature(**request), requests, rounds, what)
    return figures


def examples(rows, batch, count):
    """Yields the inputs of `count` requests, of keys that are in the table."""
    import numpy as np

    from ctr_trainer.bench import workload as w1

    rng, values = np.random.default_rng(1), values_of(rows, w1.FIELDS)
    spec = w1.spec()
    for _ in range(count):
        drawn = rng.integers(0, values, (len(spec.sparse), batch))
        inputs = {f.name: row.astype(str).astype(object) for f, row in zip(spec.sparse, drawn, strict=True)}
        yield inputs | {f.name: rng.standard_normal(batch, np.float32) for f in spec.dense}


def cpu_ms(call, requests, rounds, what):
    """-> CPU milliseconds of a call: the median of the rounds' means."""
    import tqdm

    for request in requests[:WARMUP]:
        call(request)
    means = []
    for _ in tqdm.tqdm(range(rounds), desc=f"requests, {what}", disable=not sys.stderr.isatty()):
        start = time.process_time()
        for request in requests:
            call(request)
        means.append((time.process_time() - start) / len(requests) * 1e3)
    return statistics.median(means)


def in_process_of_its_own(function, *args):
    """-> function(*args)."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        return pool.submit(function, *args).result()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000, help="of the table")
    parser.add_argument("--rounds", type=int, default=5, help="of the requests, each of which is sent once a round")
    parser.add_argument(
        "--directory", help="for the checkpoint and the export; default: the system's for temporary files"
    )
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=flags.directory) as scratch:
        directory = pathlib.Path(scratch)
        in_process_of_its_own(write_checkpoint, directory, flags.rows)
        figures = {"rows": flags.rows, **in_process_of_its_own(export, directory)}
        figures |= in_process_of_its_own(serve, directory, flags.rows, flags.rounds)
    for name, value in figures.items():
        print(f"{name:<32} {value:>20,.3f}")
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
