"""The models of histories: which histories and targets they take, and that padding takes part in nothing."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.models import bst, dien, din, onetrans, sdim
from ctr_trainer.models.estimator_spec import ModeKeys
from ctr_trainer.models.params import HistoryParams
from ctr_trainer.models.shared import histories
from ctr_trainer.system.messages.errors import UserError
from tests.layers.run import run

tf1 = tf.compat.v1
MODELS = {"din": din, "dien": dien, "bst": bst, "onetrans": onetrans, "sdim": sdim}
RNG = np.random.default_rng(0)
EMBEDDING, HISTORY = (RNG.normal(size=shape).astype(np.float32) for shape in ((3, 2, 4), (3, 5, 4)))
MASK = np.float32([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
LABELS, WEIGHT = np.float32([1, 0, 1]), np.ones(3, np.float32)


def _spec(*sparse):
    return FeatureSpec.from_dict(
        {"name": "s", "label": {"column": "y"}, "sparse": [{"dim": 4} | each for each in sparse]}
    )


ITEM, USER = {"name": "item"}, {"name": "user"}
LIKED = {"name": "liked", "slot": "item", "combiner": "none", "max_length": 5}
SPEC = _spec(USER, ITEM, LIKED)


class FakeFeatures(dict):
    """`Features` of SPEC, or another one, from tensors."""

    def __init__(self, embedding, history, mask, weight=None, spec=SPEC):
        super().__init__(weight=weight, linear=embedding[:, :, :1])
        self.spec = spec
        self.update(
            {
                "embedding": embedding,
                "embedding/dim4": embedding,
                "sequence/liked": history,
                "sequence_mask/liked": mask,
            }
        )
        self.update({"feature/user": embedding[:, 0], "feature/item": embedding[:, 1]})


def _params(name, **settings):
    return MODELS[name].Params(lambda loss, features: tf.no_op(), hidden_units=(6,), **settings)


def _logits(name, **settings):
    def make(embedding, history, mask):
        features = FakeFeatures(embedding, history, mask)
        return MODELS[name].model_fn(features, None, ModeKeys.PREDICT, _params(name, **settings)).predictions["logits"]

    return make


VARIANTS = [
    ("din", {}),
    ("din", {"attention_softmax": True, "attention_activation": "prelu"}),
    ("din", {"wide": "fm"}),
    ("dien", {}),
    *(("bst", {"pooling": pooling, "blocks": 2}) for pooling in ("concat", "mean", "target")),
    ("onetrans", {"heads": 3}),
    ("onetrans", {"blocks": 2}),
    ("sdim", {"bits": 1}),
    ("sdim", {"bits": 1, "normalize": True}),
]


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
class TestPadding:
    def test_changes_nothing_whatever_stands_there(self, name, settings):
        short, _ = run(_logits(name, **settings), EMBEDDING, HISTORY, MASK)
        mask = np.concatenate([MASK, np.zeros((3, 3), np.float32)], 1)
        rubbish = np.where(mask[..., None] > 0, np.pad(HISTORY, ((0, 0), (0, 3), (0, 0))), np.float32(-50))
        long, _ = run(_logits(name, **settings), EMBEDDING, rubbish, mask)
        np.testing.assert_allclose(long, short, atol=2e-6)
        assert np.ptp(short) > 0.01

    def test_of_all_histories_leaves_finite_losses_and_gradients(self, name, settings):
        def gradients(embedding, history, mask, labels, weight):
            losses = []
            params = dataclasses.replace(
                _params(name, **settings), train_op_fn=lambda loss, _: losses.append(loss) or 0
            )
            features = FakeFeatures(embedding, history, mask, weight)
            MODELS[name].model_fn(features, labels, ModeKeys.TRAIN, params)
            inputs = [embedding, history, *tf1.trainable_variables()]
            return losses + tf.gradients(losses, inputs, unconnected_gradients="zero")

        found, _ = run(gradients, EMBEDDING, HISTORY, np.zeros_like(MASK), LABELS, WEIGHT)
        assert all(np.isfinite(each).all() for each in found)
        assert not found[2].any()  # of the history
        assert found[1].any()


@pytest.mark.parametrize("name", MODELS)
def test_the_order_and_the_target_matter_as_the_model_says(name):
    whole = np.ones_like(MASK)
    logits = run(_logits(name), EMBEDDING, HISTORY, whole)[0]
    reordered = run(_logits(name), EMBEDDING, HISTORY[:, ::-1].copy(), whole)[0]
    assert np.allclose(logits, reordered, atol=1e-5) == (name in ("din", "sdim"))


def _of(spec, **params):
    features = FakeFeatures(tf.zeros([1, 2, 4]), tf.zeros([1, 5, 4]), tf.zeros([1, 5]), spec=spec)
    return histories(features, HistoryParams(**params), "din")


class TestTarget:
    def test_is_the_single_valued_feature_of_the_slot(self):
        with tf.Graph().as_default():
            features = FakeFeatures(tf.zeros([1, 2, 4]), tf.zeros([1, 5, 4]), tf.zeros([1, 5]))
            (history,) = histories(features, HistoryParams(), "din")
            assert history.target is features["feature/item"]

    def test_may_be_named(self):
        with tf.Graph().as_default():
            features = FakeFeatures(tf.zeros([1, 2, 4]), tf.zeros([1, 5, 4]), tf.zeros([1, 5]))
            (history,) = histories(features, HistoryParams(target="user"), "din")
            assert history.target is features["feature/user"]

    @pytest.mark.parametrize(
        ("spec", "params", "message"),
        [
            (_spec(USER, ITEM), {}, "'s' has none.*combiner"),
            (SPEC, {"sequences": ("watched",)}, "sequences=watched: .* it has liked"),
            (_spec(USER, LIKED), {}, "'liked' compared with.* slot 'item' and none does.*target=NAME"),
            (_spec(ITEM, LIKED, {"name": "other", "slot": "item"}), {}, r"2 do \(item, other\)"),
            (SPEC, {"target": "liked"}, "target=liked: .* it has user, item"),
            (
                _spec(USER | {"dim": 8}, ITEM, LIKED),
                {"target": "user"},
                "'liked' has dim 4 and its target 'user' dim 8",
            ),
        ],
    )
    def test_that_cannot_be_is_refused_by_name(self, spec, params, message):
        with tf.Graph().as_default(), pytest.raises(UserError, match=message):
            _of(spec, **params)


def test_heads_that_do_not_divide_the_dim_are_refused():
    with tf.Graph().as_default(), pytest.raises(UserError, match="heads=3: does not divide 4"):
        _logits("bst", heads=3)(tf.zeros([1, 2, 4]), tf.zeros([1, 5, 4]), tf.zeros([1, 5]))


def test_diens_auxiliary_loss_is_trained_by_its_weight_and_not_reported():
    def losses(embedding, history, mask, labels, weight, auxiliary_weight):
        trained = []
        params = dien.Params(lambda loss, _: trained.append(loss) or 0, (6,), auxiliary_weight=auxiliary_weight)
        features = FakeFeatures(embedding, history, mask, weight)
        spec = dien.model_fn(features, labels, ModeKeys.TRAIN, params)
        return spec.loss, trained[0]

    arrays = EMBEDDING, HISTORY, np.ones_like(MASK), LABELS, WEIGHT
    found = [run(lambda *x, w=w: losses(*x, w), *arrays)[0] for w in (0.0, 1.0, 2.0)]
    reported, trained = (np.array(each) for each in zip(*found, strict=True))
    np.testing.assert_allclose(reported, reported[0], rtol=1e-6)
    np.testing.assert_allclose(trained[0], reported[0], rtol=1e-6)
    assert trained[1] - trained[0] > 0.1
    np.testing.assert_allclose(trained[2] - trained[0], 2 * (trained[1] - trained[0]), rtol=1e-5)


def test_dins_wide_part_has_the_products_of_the_interest_and_every_vector():
    """fm([e_user, e_item, v]) = <e_user, e_item> + <v, e_user + e_item>."""

    def difference(embedding, history, mask):
        features = FakeFeatures(embedding, history, mask)
        logits = {}
        with tf1.variable_scope("model", reuse=tf1.AUTO_REUSE):
            for wide in ("linear", "fm"):
                params = _params("din", wide=wide, attention_softmax=True)
                logits[wide] = din.model_fn(features, None, ModeKeys.PREDICT, params).predictions["logits"]
            args = (features["feature/item"], history, mask, params.attention_units, "dice", True)
            interest = din.attention_pooling(*args, name="attention_0")
        together = tf.reduce_sum(interest * tf.reduce_sum(embedding, 1), 1)
        of_fields = tf.reduce_sum(tf.reduce_prod(embedding, 1), 1)
        return logits["fm"] - logits["linear"], together + of_fields

    (found, expected), _ = run(difference, EMBEDDING, HISTORY, MASK)
    np.testing.assert_allclose(found, expected, atol=1e-5)
