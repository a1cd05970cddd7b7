"""W1 with the embeddings as variables in the graph and TensorFlow's own sparse Adagrad.

Under horovodrun it is the naive port: `hvd.DistributedOptimizer`, which gathers all workers' sparse gradients.
"""

import os

import peer


def main():
    arguments = peer.parse(__doc__)
    rank, workers = (int(os.environ.get(f"HOROVOD_{name}", default)) for name, default in (("RANK", 0), ("SIZE", 1)))
    peer.pin(rank, workers)
    train(arguments, rank, workers)


def train(arguments, rank, workers):
    """Trains and leaves the rank's result; `arguments` as of `peer.parse`."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    tf1.disable_eager_execution()
    (ids, dense, labels), sizes = peer.read_batches(arguments.data, rank)
    batch_size, fields = ids.shape[1:]
    dataset = tf.data.Dataset.from_tensor_slices((ids.astype("int32"), dense, labels[..., None])).repeat().prefetch(4)
    ids, dense, labels = tf1.data.make_one_shot_iterator(dataset).get_next()

    normal = tf1.random_normal_initializer(stddev=sizes["stddev"])
    embedding = tf1.get_variable("embedding", [sizes["vocabulary"], sizes["dim"]], initializer=normal)
    linear = tf1.get_variable("linear", [sizes["vocabulary"], 1], initializer=tf1.zeros_initializer())
    rows, first = tf.gather(embedding, ids), tf.gather(linear, ids)[..., 0]
    total = tf.reduce_sum(rows, 1)
    second = 0.5 * tf.reduce_sum(total * total - tf.reduce_sum(rows * rows, 1), 1, keepdims=True)
    hidden = tf.concat([tf.reshape(rows, [batch_size, fields * sizes["dim"]]), dense], 1)
    for index, units in enumerate((*sizes["hidden_units"], 1)):
        kernel = tf1.get_variable(f"kernel_{index}", [hidden.shape[-1], units])
        bias = tf1.get_variable(f"bias_{index}", [units], initializer=tf1.zeros_initializer())
        hidden = tf.matmul(hidden, kernel) + bias
        if units > 1:
            hidden = tf.nn.relu(hidden)
    logits = hidden + second + tf.reduce_sum(first, 1, keepdims=True)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    optimizer = tf1.train.AdagradOptimizer(sizes["learning_rate"], initial_accumulator_value=sizes["accumulator"])
    hooks = []
    if workers > 1:
        from ctr_trainer.ranks import distributed

        distributed.init()
        optimizer, hooks = distributed.optimizer(optimizer), [distributed.broadcast_hook()]
    train_op = optimizer.minimize(loss, global_step=tf1.train.get_or_create_global_step())
    config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with tf1.train.MonitoredSession(tf1.train.ChiefSessionCreator(config=config), hooks) as session:
        version = f"tensorflow {tf.__version__}"
        peer.measure(arguments, rank, batch_size, lambda _: session.run(train_op), version)


if __name__ == "__main__":
    main()
