"""W1 in TensorFlow Recommenders Addons: dynamic embeddings in a cuckoo hash table, graph mode; one worker."""

import os

import peer

_FILLED_AT_ONCE = 100_000


def main():
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    arguments = peer.parse(__doc__)
    peer.pin(0, 1)

    import numpy as np
    import tensorflow as tf
    import tensorflow_recommenders_addons as tfra

    tf1, dynamic = tf.compat.v1, tfra.dynamic_embedding
    tf1.disable_eager_execution()
    (ids, dense, labels), sizes = peer.read_batches(arguments.data, 0)
    batch_size, fields = ids.shape[1:]
    dataset = tf.data.Dataset.from_tensor_slices((ids, dense, labels[..., None])).repeat().prefetch(4)
    ids, dense, labels = tf1.data.make_one_shot_iterator(dataset).get_next()

    def table(name, dim, initializer):
        return dynamic.get_variable(
            name,
            tf.int64,
            tf.float32,
            dim=dim,
            devices=["/CPU:0"],
            initializer=initializer,
            init_size=2 * sizes["vocabulary"],
            kv_creator=dynamic.CuckooHashTableCreator(),
        )

    embedding = table("embedding", sizes["dim"], tf1.random_normal_initializer(stddev=sizes["stddev"]))
    linear = table("linear", 1, tf1.zeros_initializer())
    rows = dynamic.embedding_lookup_unique(embedding, ids, name="rows")
    rows = tf.reshape(rows, [batch_size, fields, sizes["dim"]])
    first = tf.reshape(dynamic.embedding_lookup_unique(linear, ids, name="first"), [batch_size, fields])
    total = tf.reduce_sum(rows, 1)
    second = 0.5 * tf.reduce_sum(total * total - tf.reduce_sum(rows * rows, 1), 1, keepdims=True)
    hidden = tf.concat([tf.reshape(rows, [batch_size, fields * sizes["dim"]]), dense], 1)
    for index, units in enumerate((*sizes["hidden_units"], 1)):
        kernel = tf1.get_variable(f"kernel_{index}", [hidden.shape[-1], units], use_resource=True)
        bias = tf1.get_variable(f"bias_{index}", [units], initializer=tf1.zeros_initializer(), use_resource=True)
        hidden = tf.matmul(hidden, kernel) + bias
        if units > 1:
            hidden = tf.nn.relu(hidden)
    logits = hidden + second + tf.reduce_sum(first, 1, keepdims=True)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    adagrad = tf1.train.AdagradOptimizer(sizes["learning_rate"], initial_accumulator_value=sizes["accumulator"])
    step = tf1.train.get_or_create_global_step()
    train_op = dynamic.DynamicEmbeddingOptimizer(adagrad).minimize(loss, global_step=step)
    keys = tf1.placeholder(tf.int64, [None])
    fill = [
        each.upsert(keys, tf.random.normal([tf.shape(keys)[0], each.dim], stddev=sizes["stddev"]))
        for each in (embedding, linear)
    ]
    config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with tf1.Session(config=config) as session:
        session.run(tf1.global_variables_initializer())
        for start in range(0, sizes["vocabulary"], _FILLED_AT_ONCE):  # All rows are there, as the variables' are.
            part = np.arange(start, min(start + _FILLED_AT_ONCE, sizes["vocabulary"]))
            session.run(fill, {keys: part})
        version = f"tensorflow-recommenders-addons {tfra.__version__}, tensorflow {tf.__version__}"
        peer.measure(arguments, 0, batch_size, lambda _: session.run(train_op), version)


if __name__ == "__main__":
    main()
