"""The block of OneTrans against its equations in NumPy, and on inputs whose outputs can be worked out by hand."""

import numpy as np
import tensorflow as tf

from ctr_trainer.layers.tokens import onetrans_block
from tests.layers.graph import check_gradients, run

tf1 = tf.compat.v1
RNG = np.random.default_rng(0)
HEADS = 2
# Two tokens, and two histories, one of another dim: of 3, 1 and 0 behaviours, and of 2, 0 and 0.
TOKENS, LONG, SHORT = (RNG.normal(size=shape).astype(np.float32) for shape in ((3, 2, 4), (3, 3, 4), (3, 2, 5)))
MASK, SHORT_MASK = np.float32([[1, 1, 1], [1, 0, 0], [0, 0, 0]]), np.float32([[1, 1], [0, 0], [0, 0]])


def _block(tokens, long, mask, short, short_mask):
    return onetrans_block(tokens, [long, short], [mask, short_mask], HEADS)


def _normed(x):
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-3)


def _by_hand(number, values):
    """Returns y of one example: one softmax of each token and head over the tokens and what is there of histories."""
    lengths = MASK[number].sum().astype(int), SHORT_MASK[number].sum().astype(int)
    sources = [_normed(TOKENS[number]), _normed(LONG[number, : lengths[0]]), _normed(SHORT[number, : lengths[1]])]
    bias = values["onetrans/bias"]
    biases = np.concatenate([bias[:2], bias[2 : 2 + lengths[0]], bias[5 : 5 + lengths[1]]])
    outputs = []
    for i, x in enumerate(TOKENS[number]):
        asked = sources[0][i] @ values["onetrans/queries/kernel"][i] + values["onetrans/queries/bias"][i, 0]
        found = []
        for head, queries in enumerate(np.split(asked, HEADS)):
            parts = zip(sources, np.split(queries, [4, 8]), strict=True)
            scores = np.concatenate([source @ query / np.sqrt(len(query)) for source, query in parts]) + biases[:, head]
            weights = np.exp(scores) / np.exp(scores).sum()
            at = np.split(weights, [2, 2 + lengths[0]])
            found += [weight @ source for weight, source in zip(at, sources, strict=True)]
        kernel, bias = values["onetrans/output/kernel"][i], values["onetrans/output/bias"][i, 0]
        outputs.append(x + np.concatenate(found) @ kernel + bias)
    return np.array(outputs)


def test_each_token_attends_to_the_tokens_and_to_all_histories():
    output, values = run(_block, TOKENS, LONG, MASK, SHORT, SHORT_MASK)
    for number in range(3):
        np.testing.assert_allclose(output[number], _by_hand(number, values), atol=1e-5)


def test_a_token_gains_the_mean_of_the_vectors_where_all_scores_are_equal():
    """Normalised, the token is 1 and the behaviours are 1 and -1: 10 + (1 + 1 - 1) / 3, and 10 + 1 without them."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tokens, history, mask = tf.fill([2, 1, 1], 10.0), tf.constant([[[10.0], [-10.0]]] * 2), [[1.0, 1.0], [0.0, 0.0]]
        output = onetrans_block(tokens, [history], [tf.constant(mask)], heads=1)
        for variable in tf1.trainable_variables():
            ones = variable.op.name == "onetrans/output/kernel"
            variable.load(np.full(variable.shape, float(ones)), session)
        np.testing.assert_allclose(session.run(output), [[[10 + 1 / 3]], [[11.0]]], atol=1e-4)


def test_gradients_are_the_numeric_ones_and_zero_for_padding():
    def block(tokens, long, short):
        return onetrans_block(tokens, [long, short], [tf.constant(MASK), tf.constant(SHORT_MASK)], HEADS)

    check_gradients(block, TOKENS, LONG, SHORT)
