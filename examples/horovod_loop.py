"""Horovod's six steps in a loop of one's own; of ctr_trainer it takes the embedding service and its hooks.

Example: python -m ctr_trainer convert --format=synthetic --rows=200000 --output=/tmp/clicks
         horovodrun -np 2 python examples/horovod_loop.py --data=/tmp/clicks --model_dir=/tmp/loop
"""

import argparse
import json
import os

import horovod.tensorflow as hvd
import tensorflow as tf

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig
from ctr_trainer.estimator.embeddings import Embeddings
from ctr_trainer.estimator.open_store import open_store
from ctr_trainer.features.fed import FedFeatures
from ctr_trainer.graph_notes.row_training import RowTraining
from ctr_trainer.hooks.input_hook import InputHook
from ctr_trainer.hooks.row_sync_hook import RowSyncHook
from ctr_trainer.ranks import distributed

tf1 = tf.compat.v1


class Last(tf1.train.SessionRunHook):
    """Keeps the loss of the last step, and its number."""

    def __init__(self, loss, step):
        self._loss, self._step = loss, step

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        self.loss = float(run_values.results)

    def end(self, session):
        self.step = int(session.run(self._step))


def build(features):
    """-> the loss of the features of a batch: of a small tower over its embedding rows."""
    rows, weight = features["embedding"], features["weight"]
    inputs = tf.concat([tf.reshape(rows, [-1, rows.shape[1] * rows.shape[2]]), features["dense"]], 1)
    hidden = tf.nn.relu(tf.matmul(inputs, tf1.get_variable("hidden", [inputs.shape[1], 64])))
    logits = tf.matmul(hidden, tf1.get_variable("logits", [64, 1]))[:, 0]
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=features.labels, logits=logits)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="what convert wrote: its directory train")
    parser.add_argument("--model_dir", required=True, help="where the dense variables and the rows are saved")
    flags = parser.parse_args()
    hvd.init()  # 1: start.
    session_config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    session_config.gpu_options.visible_device_list = str(hvd.local_rank())  # 2: one GPU a process, by local rank.
    batches = BatchReader(os.path.join(flags.data, "train"), 1024, hvd.rank(), hvd.size(), epochs=1)
    config = EmbeddingConfig(service="auto", learning_rate=0.05)
    with tf.Graph().as_default(), open_store(config, flags.model_dir) as store:
        features = FedFeatures(batches.spec, batches.statistics, batches.batch_size)
        step = tf1.train.create_global_step()
        loss = build(features)
        optimizer = tf1.train.AdagradOptimizer(0.02 * hvd.size())  # 3: the learning rate grows with the workers.
        optimizer = hvd.DistributedOptimizer(optimizer)  # 4: gradients are averaged over the workers.
        train_op = optimizer.minimize(loss, step)
        embeddings = Embeddings(features, config, seed=1, store=store)
        training = RowTraining.of_loss(features, loss, config.learning_rate)
        embeddings.begin()
        rows = embeddings.feed(embeddings.prepare(batches), training=True)
        last = Last(loss, step)
        hooks = [
            hvd.BroadcastGlobalVariablesHook(0),  # 5: all workers begin with rank 0's variables.
            InputHook(features, embeddings, rows, training),
            RowSyncHook(embeddings, every_n_steps=30),
            last,
        ]
        checkpoint_dir = flags.model_dir if hvd.rank() == 0 else None  # 6: rank 0 alone writes.
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=checkpoint_dir, hooks=hooks, config=session_config
        ) as session:
            while not session.should_stop():
                session.run(train_op)
        distributed.barrier("rows_handed_on")
        if hvd.rank() == 0:
            store.save(os.path.join(flags.model_dir, "rows"), last.step)
            tables = store.stats()["tables"].values()
            rows = sum(table["rows"] for table in tables)
            print(json.dumps({"global_step": last.step, "loss": last.loss, "rows": rows}))


if __name__ == "__main__":
    main()
