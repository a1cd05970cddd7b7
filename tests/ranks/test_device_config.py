"""The options of a session as values: no GPU is needed for them."""

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2

from ctr_trainer.ranks.horovod import config_proto
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import hardware

ON = rewriter_config_pb2.RewriterConfig.ON


@pytest.mark.parametrize("gpus", (1, 8))
def test_each_of_a_hosts_workers_takes_the_gpus_of_its_local_rank(gpus):
    configs = [config_proto(gpus, rank) for rank in range(gpus)]
    assert [config.gpu_options.visible_device_list for config in configs] == [str(rank) for rank in range(gpus)]
    assert all(config.gpu_options.allow_growth for config in configs)
    with pytest.raises(UserError, match=f"local rank {gpus} has no GPU of its own: this process sees {gpus}"):
        config_proto(gpus, gpus)
    lists = [config_proto(4, rank, gpus_each=2).gpu_options.visible_device_list for rank in range(2)]
    assert lists == ["0,1", "2,3"]
    with pytest.raises(UserError, match="local rank 1 has no 2 GPUs of its own: this process sees 3"):
        config_proto(3, 1, gpus_each=2)


def test_without_gpus_a_worker_has_its_threads_and_no_device_list():
    config = config_proto(0, 3, threads=2)
    assert (config.intra_op_parallelism_threads, config.inter_op_parallelism_threads) == (2, 2)
    assert config.gpu_options.visible_device_list == ""
    assert config.experimental.disable_thread_spinning


def test_float16_is_of_gpus_and_bfloat16_of_processors_that_have_it(monkeypatch):
    assert config_proto(2, 1, precision="float16").graph_options.rewrite_options.auto_mixed_precision == ON
    with pytest.raises(UserError, match="float16 is for GPUs, but this process sees none"):
        config_proto(0, 0, precision="float16")
    with pytest.raises(UserError, match="bfloat16 is for CPUs"):
        config_proto(1, 0, precision="bfloat16")
    monkeypatch.setattr(hardware, "has_bfloat16", lambda: True)
    rewriting = config_proto(0, 0, precision="bfloat16").graph_options.rewrite_options
    assert rewriting.auto_mixed_precision_onednn_bfloat16 == ON
    assert rewriting.auto_mixed_precision != ON
    monkeypatch.setattr(hardware, "has_bfloat16", lambda: False)
    with pytest.raises(UserError, match="no instructions for it"):
        config_proto(0, 0, precision="bfloat16")


@pytest.mark.skipif(not hardware.has_bfloat16(), reason="this processor has no bfloat16 instructions")
def test_bfloat16_rounds_the_factors_of_matrix_products_and_nothing_else():
    with tf.Graph().as_default():
        a, b = (tf.compat.v1.placeholder(tf.float32, [64, 64]) for _ in range(2))
        product, total = tf.matmul(tf.nn.relu(tf.matmul(a, b)), b), a + b
        with tf.compat.v1.Session(config=config_proto(0, 0, 1, "bfloat16")) as session:
            # 1 + 2^-12 has no bfloat16: it becomes 1.
            ones, fine = [[1.0] * 64] * 64, [[1 + 2.0**-12] * 64] * 64
            products, totals = session.run([product, total], {a: fine, b: ones})
    assert products[0, 0] == 64.0 * 64.0
    assert totals[0, 0] == 2 + 2.0**-12
