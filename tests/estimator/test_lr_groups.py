import pytest
import tensorflow as tf

from ctr_trainer.settings.train_settings import LrGroups
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1


def _factors(groups, *names):
    with tf.Graph().as_default():
        return groups.factors_of([tf1.get_variable(name, []) for name in names])


def test_the_longest_scope_counts_and_others_have_the_whole_rate():
    groups = LrGroups.parse(["mlp:0.1", "mlp/layer_1:2", "linear:0"])
    names = ("mlp/layer_0/kernel", "mlp/layer_1/bias", "mlp_2/kernel", "linear/bias", "logits/bias")
    assert _factors(groups, *names) == [0.1, 2.0, 1.0, 0.0, 1.0]


def test_a_scope_without_variables_is_refused_with_those_that_there_are():
    with pytest.raises(UserError, match="lr_groups=deep: .* there are linear, linear/bias, mlp, mlp/layer_0"):
        _factors(LrGroups.parse(["deep:0.1"]), "mlp/layer_0/kernel", "linear/bias")


@pytest.mark.parametrize("text", ["mlp", "mlp:", ":0.1", "mlp:fast", "mlp:-1", "mlp:nan"])
def test_what_is_no_scope_and_factor_is_refused(text):
    with pytest.raises(ValueError, match="expected scope:factor"):
        LrGroups.parse([text])


def test_a_scope_given_twice_is_refused():
    with pytest.raises(ValueError, match="mlp has a factor already"):
        LrGroups.parse(["mlp:0.1", "mlp:0.2"])
