"""Horovod's six steps, with embeddings in the service: `horovod_six_steps.py` with another input and `own_loop`.

Example: python -m ctr_trainer convert --format=synthetic --rows=200000 --output=/tmp/clicks
         horovodrun -np 2 python examples/horovod_loop.py --data=/tmp/clicks --model_dir=/tmp/loop
"""

import argparse
import json
import os
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

import ctr_trainer as ctr

tf1 = tf.compat.v1


def model_fn(features: Any, labels: tf.Tensor, mode: str, params: Any) -> ctr.EstimatorSpec:
    """Returns the loss and the training step of a small tower over the rows that the batch looks up."""
    rows, weight = features["embedding"], features["weight"]
    inputs = tf.concat([tf.reshape(rows, [-1, rows.shape[1] * rows.shape[2]]), features["dense"]], 1)
    hidden = tf.nn.relu(tf.matmul(inputs, tf1.get_variable("hidden", [inputs.shape[1], 64])))
    logits = tf.matmul(hidden, tf1.get_variable("logits", [64, 1]))[:, 0]
    # Padding examples of weight 0 let all workers make the same number of steps.
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.math.divide_no_nan(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))
    optimizer = tf1.train.AdagradOptimizer(0.02 * hvd.size())  # 3: the learning rate grows with the workers.
    optimizer = hvd.DistributedOptimizer(optimizer)  # 4: gradients are averaged over the workers.
    train_op = optimizer.minimize(loss, tf1.train.get_global_step())
    return ctr.EstimatorSpec(mode, {"logits": logits}, loss, train_op)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="what convert wrote: its directory train")
    parser.add_argument("--model_dir", required=True, help="where the checkpoints go")
    parser.add_argument("--epochs", type=int, default=1, help="passes over the data")
    parser.add_argument("--save_checkpoints_steps", type=int, default=100, help="steps between checkpoints")
    parser.add_argument(
        "--deterministic", action="store_true", help="make identical runs end with bit-identical models"
    )
    flags = parser.parse_args()
    hvd.init()  # 1: start.
    ctr.install_log()
    config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.gpu_options.visible_device_list = str(hvd.local_rank())  # 2: one GPU per process, by local rank.

    def input_fn(position: Any) -> ctr.BatchReader:  # Where a run that starts again resumes its data.
        data = os.path.join(flags.data, "train")
        return ctr.BatchReader(data, 1024, hvd.rank(), hvd.size(), epochs=flags.epochs, position=position)

    run = ctr.RunConfig(
        save_checkpoints_steps=flags.save_checkpoints_steps, log_steps=10, deterministic=flags.deterministic
    )
    last_loss = None
    with ctr.own_loop(model_fn, input_fn, flags.model_dir, run) as loop:
        hooks = [hvd.BroadcastGlobalVariablesHook(0), *loop.hooks]  # 5: all workers start with rank 0's variables.
        checkpoint_dir = loop.checkpoint_dir if hvd.rank() == 0 else None  # 6: only rank 0 writes checkpoints.
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=checkpoint_dir, hooks=hooks, config=config, save_checkpoint_secs=None
        ) as session:
            while not session.should_stop():
                _, last_loss = session.run([loop.train_op, loop.loss])
    if hvd.rank() == 0 and last_loss is not None:  # A run that starts again after the last batch makes no step.
        print(json.dumps({"loss": float(last_loss)}))


if __name__ == "__main__":
    main()
