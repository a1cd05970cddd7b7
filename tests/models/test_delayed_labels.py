"""Labels that come later than their impressions: weights and gradients in NumPy, optima, and small trainings."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from ctr_trainer import cli
from ctr_trainer.models import mmoe
from ctr_trainer.models.delayed_labels import _standardized, es_dfm_importance, late_labels_hook, lateness_loss
from ctr_trainer.models.estimator_spec import ModeKeys
from ctr_trainer.models.head import binary_head, multi_head
from ctr_trainer.models.params import ModelParams
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError
from tests.layers.run import run
from tests.stream.test_redis_streams import server  # noqa: F401, a fixture

tf1 = tf.compat.v1
LOGITS, LATE_LOGITS = np.float32([[1.5], [-2.0], [0.25], [-0.5]]), np.float32([0.5, -1.0, 2.0, -3.0])
CLICK, WEIGHT = np.float32([1, 0, 0, 1]), np.float32([1, 2, 0.5, 1])


def _sigmoid(x):
    return 1 / (1 + np.exp(-np.float64(x)))


def test_padding_does_not_change_what_the_lateness_is_computed_from():
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32) + 5
    alone, _ = run(_standardized, x, np.ones(8, np.float32))
    padded, _ = run(_standardized, np.concatenate([x, np.zeros((56, 3), np.float32)]), np.float32([1] * 8 + [0] * 56))
    np.testing.assert_allclose(padded[:8], alone, rtol=1e-4)
    np.testing.assert_allclose([alone.mean(0), alone.std(0)], [[0] * 3, [1] * 3], atol=1e-3)


def _mean(values):
    return (values * WEIGHT).sum() / WEIGHT.sum()


class TestTheGradient:
    """Each record's gradient by its logit is its weight times (p - y), as the weights have none."""

    @pytest.mark.parametrize("is_named", [False, True])
    def test_is_that_of_fake_negative_weighted(self, is_named):
        def make(logits, click, weight):
            click = {"click": click} if is_named else click
            trained = []
            params = ModelParams(
                lambda loss, features: trained.append(loss) or tf.no_op(), delayed_labels="fake_negative"
            )
            spec = binary_head({"weight": weight}, click, ModeKeys.TRAIN, params, logits)
            return spec.loss, tf.gradients(trained[0], logits)[0]

        (loss, gradient), _ = run(make, LOGITS, CLICK, WEIGHT)
        p = _sigmoid(LOGITS[:, 0])
        expected = np.where(CLICK == 1, -(1 + p) * np.log(p), -(1 - p) * (1 + p) * np.log(1 - p))
        assert loss == pytest.approx(_mean(expected), rel=1e-5)
        weights = np.where(CLICK == 1, 1 + p, (1 - p) * (1 + p))
        np.testing.assert_allclose(gradient[:, 0], weights * (p - CLICK) * WEIGHT / WEIGHT.sum(), rtol=1e-5)

    def test_is_that_of_es_dfm(self):
        def make(logits, late_logits, click):
            importance = es_dfm_importance(click, logits[:, 0], late_logits)
            loss = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(click, logits[:, 0]) * importance)
            assert tf.gradients(loss, late_logits) == [None]
            return tf.gradients(loss, logits)[0]

        gradient, _ = run(make, LOGITS, LATE_LOGITS, CLICK)
        p, s = _sigmoid(LOGITS[:, 0]), _sigmoid(LATE_LOGITS)
        p_dp, p_rn = p * s, (1 - p) / (1 - p + p * s)
        weights = np.where(CLICK == 1, 1 + p_dp, (1 + p_dp) * p_rn)
        np.testing.assert_allclose(gradient[:, 0], weights * (p - CLICK), rtol=1e-5)

    def test_of_the_lateness_is_that_of_the_positive_records(self):
        late = np.float32([1, 0, 0, 0])

        def make(late_logits, click, late, weight):
            return tf.gradients(lateness_loss(click, late, late_logits, weight), late_logits)[0]

        gradient, _ = run(make, LATE_LOGITS, CLICK, late, WEIGHT)
        expected = CLICK * (_sigmoid(LATE_LOGITS) - late) * WEIGHT / WEIGHT.sum()
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-9)


def test_es_dfm_is_fnw_if_all_labels_are_late_and_plain_if_none_is():
    always, never = np.full(4, 40, np.float32), np.full(4, -200, np.float32)
    extreme = np.float32([-60, 40, 3, -3])
    (weights, plain), _ = run(
        lambda click, z, always, never: (es_dfm_importance(click, z, always), es_dfm_importance(click, z, never)),
        *(CLICK, extreme, always, never),
    )
    p = _sigmoid(extreme)
    np.testing.assert_allclose(weights, np.where(CLICK == 1, 1 + p, (1 - p) * (1 + p)), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(plain, 1, rtol=1e-5)


P, LATENESS = np.array([0.05, 0.3, 0.6]), np.array([0.9, 0.1, 0.5])  # Of three values x.


@pytest.mark.parametrize("method, window", [("wait", 0), ("wait", 1), ("fake_negative", 0), ("es_dfm", 1)])
def test_the_minimum_of_the_loss_is_the_true_probability(method, window):
    """All records of each x, weighted by how many there are; without a window every label is late."""
    s = LATENESS if window else np.ones(3)
    counts = np.stack([1 - P + P * s, P * (1 - s), P * s])  # Negative, positive in time, late.
    x, click, late = np.tile(np.eye(3), (3, 1)), np.repeat([0, 1, 1], 3), np.repeat([0, 0, 1], 3)
    with tf.Graph().as_default():
        tf1.set_random_seed(1)
        features = {
            "weight": tf.constant(np.ravel(counts), tf.float32),
            "embedding": tf.constant(x[:, :, None], tf.float32),
        }
        labels = {"click": tf.constant(click, tf.float32), "late": tf.constant(late, tf.float32)}
        z = tf1.get_variable("z", [3, 1], initializer=tf1.zeros_initializer())
        optimizer = tf1.train.AdamOptimizer(0.05)
        params = ModelParams(lambda loss, _: optimizer.minimize(loss), label="click", delayed_labels=method)
        spec = binary_head(features, labels, ModeKeys.TRAIN, params, tf.matmul(tf.constant(x, tf.float32), z))
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(600):
                session.run(spec.train_op)
            found = _sigmoid(session.run(z)[:, 0])
    biased = P / (1 + P * s)
    np.testing.assert_allclose(found, biased if method == "wait" else P, atol=0.005)


SPEC = """
name = "late"
[[label]]
column = "click"
[[label]]
column = "late"
[[sparse]]
column = "user"
dim = 4
"""


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    """Writes the records of 12,000 impressions of 60 users, whose clicks are late for every second one."""
    directory = tmp_path_factory.mktemp("late")
    (directory / "spec.toml").write_text(SPEC)
    rng = np.random.default_rng(1)
    p, s = rng.uniform(0.02, 0.9, 60), np.where(np.arange(60) % 2, 0.95, 0.05)

    def write(name, impressions, lateness):
        user = rng.integers(0, 60, impressions)
        time, clicked = np.arange(impressions), rng.random(impressions) < p[user]
        is_late = clicked & (rng.random(impressions) < lateness[user])
        again = np.flatnonzero(is_late)
        order = np.argsort(np.concatenate([time, time[again] + rng.exponential(200, len(again))]))
        columns = {
            "user": np.concatenate([user, user[again]]),
            "click": np.concatenate([clicked & ~is_late, np.ones(len(again), bool)]).astype(int),
            "late": np.repeat([0, 1], [impressions, len(again)]),
        }
        table = pa.table({name: values[order] for name, values in columns.items()})
        pq.write_table(table, directory / f"{name}.parquet")
        return table

    write("joined", 12_000, np.zeros(60))
    at_once = write("at_once", 12_000, np.ones(60))
    write("window", 12_000, s)
    write("test", 6_000, np.zeros(60))
    return directory, at_once


def _train(directory, model_dir, data, flag, *more):
    flags = [f"--model_dir={model_dir}", f"--train_data={data}", f"--feature_spec={directory / 'spec.toml'}"]
    flags += ["--model=lr", "--label=click", "--batch_size=128", "--embedding_learning_rate=1", "--shuffle_buffer=0"]
    assert cli.main(["train", *flags, f"--delayed_labels={flag}", *more]) == 0


def _scores(directory, model_dir, capsys):
    assert cli.main(["evaluate", f"--model_dir={model_dir}", f"--eval_data={directory / 'test.parquet'}"]) == 0
    found = json.loads(capsys.readouterr().out.strip().rpartition("\n")[2])
    return {name: found[f"{name}/click"] for name in ("auc", "logloss", "copc")}


def test_a_training_closes_most_of_the_gap_and_calls_its_metrics_biased(streams, tmp_path, capsys, caplog):
    directory, _ = streams
    found = {}
    runs = {"oracle": ("joined", "wait"), "ignore": ("window", "wait")}
    runs |= {"fake_negative": ("at_once", "fake_negative"), "es_dfm": ("window", "es_dfm")}
    for name, (data, flag) in runs.items():
        caplog.clear()
        with caplog.at_level("INFO"):
            _train(directory, tmp_path / name, directory / f"{data}.parquet", flag)
        assert ("copc of the training data are biased" in caplog.text) == (flag != "wait")
        found[name] = _scores(directory, tmp_path / name, capsys)
    for metric in ("auc", "logloss"):
        gap = found["oracle"][metric] - found["ignore"][metric]
        assert abs(gap) > 0.01
        for name in ("fake_negative", "es_dfm"):
            assert (found[name][metric] - found["ignore"][metric]) / gap > 0.5, (metric, found)
    assert found["ignore"]["copc"] > 1.1
    assert all(0.93 < found[name]["copc"] < 1.07 for name in ("fake_negative", "es_dfm")), found


def test_a_training_on_files_continues_on_a_stream_of_late_positives(streams, server, tmp_path, capsys):  # noqa: F811
    directory, at_once = streams
    client, address = server
    with client.pipeline() as pipeline:
        for record in at_once.to_pylist():
            pipeline.xadd("late", {"value": json.dumps(record)})
        pipeline.execute()
    stream = ["--stream_from=earliest", "--stream_until=latest"]
    _train(directory, tmp_path / "model", directory / "joined.parquet", "wait", "--max_steps=10")
    _train(directory, tmp_path / "model", f"redis://{address}/late", "fake_negative", "--max_steps=0", *stream)
    assert 0.93 < _scores(directory, tmp_path / "model", capsys)["copc"] < 1.07


def test_es_dfm_does_not_continue_another_training_but_starts_warm_from_it(streams, tmp_path, capsys):
    directory, _ = streams
    flags = [f"--train_data={directory / 'window.parquet'}", f"--feature_spec={directory / 'spec.toml'}"]
    flags += ["--label=click", "--hidden_units=8"]
    before = f"--model_dir={tmp_path / 'before'}"
    assert cli.main(["train", before, *flags, "--max_steps=2"]) == 0
    assert cli.main(["train", before, *flags, "--max_steps=4", "--delayed_labels=es_dfm"]) == 1
    assert "this one has the variables lateness/" in capsys.readouterr().err
    flags += [f"--warm_start={tmp_path / 'before'}", "--delayed_labels=es_dfm", "--max_steps=2"]
    assert cli.main(["train", f"--model_dir={tmp_path / 'warm'}", *flags]) == 0


class TestIsRefused:
    def test_a_model_of_several_labels(self, capsys, tmp_path):
        with pytest.raises(UserError, match="delayed_labels=es_dfm: is for models of one label"):
            mmoe.Params(delayed_labels="es_dfm")
        with tf.Graph().as_default(), pytest.raises(UserError, match="is for models of one label, .* 2: click, buy"):
            params, z = ModelParams(delayed_labels="fake_negative"), tf.zeros([2, 1])
            multi_head({"weight": tf.ones([2])}, None, ModeKeys.PREDICT, params, {"click": z, "buy": z})

    @pytest.mark.parametrize("other", [dict(positive_weight=2.0), dict(negative_sampling=0.5)])
    def test_another_weight(self, other):
        with pytest.raises(UserError, match=f"delayed_labels=fake_negative: {next(iter(other))}=.* would spoil"):
            ModelParams(delayed_labels="fake_negative", **other)

    def test_data_without_the_label_late(self):
        with tf.Graph().as_default(), pytest.raises(UserError, match="needs two labels, .* 'late'"):
            features = {"weight": tf.ones([2]), "embedding": tf.ones([2, 1, 1])}
            binary_head(features, tf.zeros([2]), ModeKeys.TRAIN, ModelParams(delayed_labels="es_dfm"), tf.zeros([2, 1]))

    @pytest.mark.parametrize(
        "click, late, wrong",
        [([0, 1, 2], None, 1), ([0.5, 1, -1], None, 2), ([0, 1, 1], [1, 1, 0], 1), ([0, 1, 1], [0, 1, 0], 0)],
    )
    def test_a_label_that_is_not_0_or_1_or_late_and_no_positive(self, click, late, wrong):
        distributed.init()
        with tf.Graph().as_default():
            labels = [tf.constant(each, tf.float32) for each in (click, late) if each]
            hook = late_labels_hook("click", labels[0], labels[1] if late else None)
            with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
                if not wrong:
                    session.run(labels[0])
                    return
                with pytest.raises(UserError, match=f"{wrong} of the 3 labels .* click must be 0 or 1"):
                    session.run(labels[0])
