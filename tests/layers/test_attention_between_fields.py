import numpy as np
from scipy.special import softmax

from ctr_trainer.layers.interacting import interacting
from tests.layers.run import run, vectors


def test_each_field_is_mixed_from_all_by_similarity_in_each_head():
    e = vectors(5, 4, 3)
    output, variables, _ = run(lambda x: interacting(x, heads=2, head_dim=2, name="layer"), e)
    query, key, value, residual = (e @ variables[f"layer/{name}"] for name in ("query", "key", "value", "residual"))
    heads = []
    for columns in (slice(0, 2), slice(2, 4)):
        weights = softmax(np.einsum("bmd,bkd->bmk", query[..., columns], key[..., columns]), axis=2)
        heads.append(weights @ value[..., columns])
    expected = np.maximum(np.concatenate(heads, 2) + residual, 0)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def test_the_order_of_the_fields_means_nothing():
    e = vectors(2, 4, 3)
    layer = lambda x: interacting(x, heads=1, head_dim=2, name="layer")  # noqa: E731
    there, back = run(layer, e)[0], run(layer, e[:, ::-1])[0]
    np.testing.assert_allclose(back[:, ::-1], there, rtol=1e-5, atol=1e-6)
