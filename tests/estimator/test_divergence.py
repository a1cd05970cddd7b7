"""What is not finite is never committed: not the loss's step, no variable, no row; and how a training goes on."""

import os

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.checkpoint import checkpoint as checkpoints
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.models import deepfm as model
from ctr_trainer.system.messages.errors import UserError
from tests.estimator import deepfm

tf1 = tf.compat.v1
STEP = 12


def _train(data, model_dir, model_fn=model.model_fn, max_steps=20, hooks=(), **more):
    estimator = deepfm.estimator(model_dir, model_fn=model_fn, save_checkpoints_steps=5, keep_checkpoint_max=2)
    return estimator.train(lambda: BatchReader(data, 32), hooks, max_steps=max_steps, **more).last_training


def _loss_is_nan(features, labels, mode, params):
    """DeepFM, whose gradients stay finite while its loss is NaN from STEP on."""
    step = tf.cast(tf1.train.get_global_step(), tf.int32)
    with tf.control_dependencies([step]):  # Read before the gradients, and so before this step's update counts it.
        spec = model.model_fn(features, labels, mode, params)
    nan = tf.where(step >= STEP - 1, np.float32(np.nan), np.float32(0))
    return type(spec)(mode, spec.predictions, spec.loss + nan, spec.train_op)


class _Poison(tf1.train.SessionRunHook):
    """Makes one dense variable infinite after STEP, by which no loss before the next checkpoint is known to suffer."""

    def begin(self):
        self._variable = next(v for v in tf1.global_variables() if v.op.name.endswith("bias/Adagrad"))
        self._infinite = tf1.assign(self._variable, tf.fill(self._variable.shape, np.float32(np.inf)))
        self._step = 0

    def after_run(self, run_context, run_values):
        self._step += 1
        if self._step == STEP:
            run_context.session.run(self._infinite)


class _PoisonRows(tf1.train.SessionRunHook):
    """Has the optimizer's state of two rows infinite after STEP: a loss does not show that."""

    def __init__(self, store):
        self._store, self._step = store, 0

    def after_run(self, run_context, run_values):
        self._step += 1
        if self._step == STEP:
            table = next(iter(self._store.tables.values()))
            slots = np.array([3, 7])
            table.before_change(slots)
            table.stored[slots, -1] = np.inf


def _whole(model_dir):
    found = checkpoints.list_checkpoints(model_dir)
    for each in found:
        each.verify()
    return [each.step for each in found]


def test_a_loss_that_is_nan_ends_the_training_before_its_step_is_saved(data, tmp_path):
    with pytest.raises(UserError) as error:
        _train(data, tmp_path, _loss_is_nan)
    last = checkpoints.checkpoint_path(str(tmp_path), 10)
    assert f"the loss of step {STEP} is nan on rank 0" in str(error.value)
    assert "with clip_norm" in str(error.value)
    assert "resume_from=STEP" in str(error.value)
    assert str(error.value).endswith(f"The last checkpoint is {last}, of step 10: the same command resumes from it")
    assert _whole(tmp_path) == [5, 10]
    with pytest.raises(UserError, match="the loss of step"):  # As in a loop that starts it again and again.
        _train(data, tmp_path, _loss_is_nan)
    assert _whole(tmp_path) == [5, 10]


def test_a_dense_variable_that_is_not_finite_is_not_saved(data, tmp_path):
    with pytest.raises(UserError, match=rf"bias/Adagrad.* not finite at step 15: .*{tmp_path}.*step-0000000010"):
        _train(data, tmp_path, hooks=[_Poison()])
    assert _whole(tmp_path) == [5, 10]


def test_rows_that_are_not_finite_are_not_saved(data, tmp_path, monkeypatch):
    store = LocalStore()
    monkeypatch.setattr("ctr_trainer.estimator.open_store.LocalStore", lambda *_, **__: store)
    with pytest.raises(UserError, match=r"table dim4, step 15: the row of key -?\d+ is not finite"):
        _train(data, tmp_path, hooks=[_PoisonRows(store)])
    assert _whole(tmp_path) == [5, 10]


@pytest.mark.parametrize("full", [True, False])
def test_a_store_names_a_row_that_it_refuses_and_leaves_no_file(tmp_path, full):
    store = LocalStore()
    store.create_table(TableConfig("t", (2,), (0.1,), "sgd"))
    keys = np.arange(1, 400_001)
    store.sync("t", keys, np.ones((len(keys), 2), np.float32), "w", 1)
    since = None if full else store.save(tmp_path / "before", 1)[0]["snapshot"]
    table = store.tables["t"]
    bad = table.find(keys[[5, 300_000, 399_999]])
    table.before_change(bad)
    table.stored[bad, 1] = [np.nan, np.inf, -np.inf]
    with pytest.raises(UserError, match="table t, step 2: the row of key 6 is not finite"):
        store.save(tmp_path / "after", 2, since)
    assert os.listdir(tmp_path / "after") == []


def test_rows_that_another_worker_of_shared_memory_made_infinite_are_refused(tmp_path):
    memory, config = SharedMemory(), TableConfig("t", (2,), (0.1,), "sgd")
    chief, other = (LocalStore(each) for each in (memory, SharedMemory(memory.address)))
    for store in (chief, other):
        store.create_table(config)
    table = other.tables["t"]
    for _ in range(2):
        table.apply_gradients(table.find_or_create(np.array([5])), [np.full((1, 2), 3e38, np.float32)], 1.0)
    with pytest.raises(UserError, match="table t, step 3: the row of key 5 is not finite"):
        chief.save(tmp_path, 3)


def test_training_resumes_at_a_named_step_and_sets_later_checkpoints_aside(data, tmp_path, caplog):
    _train(data, tmp_path, max_steps=15)
    with pytest.raises(UserError, match="there is no checkpoint of step 11 in .*; there are: 5, 10, 15"):
        _train(data, tmp_path, resume_from=11)
    assert _whole(tmp_path) == [5, 10, 15]
    _train(data, tmp_path, max_steps=12, resume_from=10)
    assert _whole(tmp_path) == [5, 10, 12]
    aside = tmp_path / "checkpoints" / "set-aside-step-0000000015"
    assert f"is now {aside}" in caplog.text
    assert os.path.exists(aside / "manifest.json")
    _train(data, tmp_path, max_steps=15)
    _train(data, tmp_path, max_steps=13, resume_from=12)
    assert os.path.exists(aside / "manifest.json")  # Nor is it lost to the next one of its step.
    assert os.path.exists(tmp_path / "checkpoints" / "set-aside-step-0000000015.2" / "manifest.json")


def test_a_training_whose_base_was_altered_resumes_from_the_earlier_chain(data, tmp_path, caplog):
    _train(data, tmp_path, max_steps=20)
    base = checkpoints.latest_checkpoint(tmp_path).tables[0]["file"]
    assert _whole(tmp_path) == [5, 15, 20]
    with open(tmp_path / "checkpoints" / "step-0000000020" / base, "r+b") as file:
        file.seek(700)
        byte = file.read(1)
        file.seek(700)
        file.write(bytes([byte[0] ^ 1]))
    result = _train(data, tmp_path, max_steps=21)
    for step in (15, 20):
        assert f"REFUSED the checkpoint {checkpoints.checkpoint_path(str(tmp_path), step)}: " in caplog.text
        assert (tmp_path / "checkpoints" / f"refused-step-{step:010d}").is_dir()
    assert f"resuming from the previous checkpoint: {checkpoints.checkpoint_path(str(tmp_path), 5)}" in caplog.text
    assert (result["steps"], result["global_step"]) == (16, 21)
    assert set(_whole(tmp_path)) > {21}
