import numpy as np

from ctr_trainer.layers.cin import cin, outer
from tests.layers.run import assert_equal, run, vectors


def test_each_layers_maps_weigh_the_products_of_its_inputs_with_the_embeddings():
    e = vectors(3, 4, 2)
    output, variables, _ = run(lambda x: cin(x, (5, 6)), e)
    first = np.einsum("bid,bjd,ijh->bhd", e, e, variables["cin/kernel_0"].reshape(4, 4, 5))
    second = np.einsum("bid,bjd,ijh->bhd", first, e, variables["cin/kernel_1"].reshape(5, 4, 6))
    expected = np.concatenate([first.sum(2), second.sum(2)], 1)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


def test_the_outer_products_gradients_are_those_of_automatic_differentiation():
    assert_equal(outer, lambda a, b: a[:, :, None] * b[:, None, :], vectors(5, 4), vectors(5, 3, seed=2))
