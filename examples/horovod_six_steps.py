"""Horovod's six steps in a program of TensorFlow 1's kind, as it runs today; nothing of ctr_trainer is in it.

Example: python -m ctr_trainer convert --format=synthetic --rows=200000 --output=/tmp/clicks
         horovodrun -np 2 python examples/horovod_six_steps.py --data=/tmp/clicks --model_dir=/tmp/six_steps
"""

import argparse
import json
import os
from collections.abc import Iterator

import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf

tf1 = tf.compat.v1
tf.train.SessionRunHook = tf1.train.SessionRunHook  # Horovod 0.28.1 asks for this name, which TensorFlow 2.16 dropped.
import horovod.tensorflow as hvd  # noqa: E402

VOCABULARY, DIM, BATCH_SIZE = 50_000, 16, 1024


def read_batches(data: str) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields random batches of this rank's share of the examples: keys, numbers, labels."""
    table = pq.read_table(os.path.join(data, "train"))
    names = {kind: [name for name in table.column_names if name.startswith(kind)] for kind in ("C", "I")}
    keys, numbers = (np.stack([table[name].to_numpy() for name in names[kind]], 1) for kind in ("C", "I"))
    labels, draw = table["label"].to_numpy(), np.random.default_rng(hvd.rank())
    while True:
        rows = draw.choice(np.arange(hvd.rank(), len(labels), hvd.size()), BATCH_SIZE)
        # What is missing is NaN.
        yield keys[rows], np.log1p(np.nan_to_num(numbers[rows]).clip(0)), labels[rows]


def build(keys: tf.Tensor, numbers: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the loss of a small tower over a table of embeddings."""
    rows = tf.gather(tf1.get_variable("embedding", [VOCABULARY, DIM]), tf.math.floormod(keys, VOCABULARY))
    inputs = tf.concat([tf.reshape(rows, [-1, rows.shape[1] * DIM]), numbers], 1)
    hidden = tf.nn.relu(tf.matmul(inputs, tf1.get_variable("hidden", [inputs.shape[1], 64])))
    logits = tf.matmul(hidden, tf1.get_variable("logits", [64, 1]))[:, 0]
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="what convert wrote: its directory train")
    parser.add_argument("--model_dir", required=True, help="where the checkpoints go")
    parser.add_argument("--steps", type=int, default=400, help="steps of all workers together")
    flags = parser.parse_args()
    hvd.init()  # 1: start.
    config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.gpu_options.visible_device_list = str(hvd.local_rank())  # 2: one GPU per process, by local rank.
    with tf.Graph().as_default():  # TensorFlow 2 would otherwise run each operation at once.
        kinds = ((tf.int64, 26), (tf.float32, 13), (tf.float32, None))
        signature = tuple(tf.TensorSpec([BATCH_SIZE, n] if n else [BATCH_SIZE], dtype) for dtype, n in kinds)
        dataset = tf.data.Dataset.from_generator(lambda: read_batches(flags.data), output_signature=signature)
        loss = build(*tf1.data.make_one_shot_iterator(dataset.prefetch(4)).get_next())
        optimizer = tf1.train.AdagradOptimizer(0.02 * hvd.size())  # 3: the learning rate grows with the workers.
        optimizer = hvd.DistributedOptimizer(optimizer)  # 4: gradients are averaged over the workers.
        train_op = optimizer.minimize(loss, tf1.train.get_or_create_global_step())
        hooks = [
            hvd.BroadcastGlobalVariablesHook(0),  # 5: all workers start with the variables of rank 0.
            tf1.train.StopAtStepHook(last_step=flags.steps // hvd.size()),
        ]
        checkpoint_dir = flags.model_dir if hvd.rank() == 0 else None  # 6: only rank 0 writes checkpoints.
        with tf1.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, hooks=hooks, config=config) as session:
            while not session.should_stop():
                _, last_loss = session.run([train_op, loss])
        if hvd.rank() == 0:
            print(json.dumps({"loss": float(last_loss)}))


if __name__ == "__main__":
    main()
