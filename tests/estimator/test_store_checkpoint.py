"""Checkpoints in a store, which is moto's server: what counts, what stays, and what goes first."""

import numpy as np
import pytest

from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.estimator import checkpoint as checkpoints
from ctr_trainer.estimator import retention
from ctr_trainer.estimator.model_selection import EvaluationHistory
from ctr_trainer.system.messages.errors import UserError, is_loss
from tests import object_store
from tests.estimator.test_whole_checkpoints import Job, keys_of
from tests.files.failing_proxy import FailingProxy

MODEL = f"s3://{object_store.BUCKET}/model"


def test_a_checkpoint_is_there_with_its_manifest_and_goes_with_it(store):
    assert checkpoints.list_checkpoints(MODEL) == [] and EvaluationHistory.load(MODEL).evaluations == []
    job = Job(MODEL)
    job.store.save(checkpoints.checkpoint_path(MODEL, 7), 7)
    assert checkpoints.list_checkpoints(MODEL) == []  # Its manifest is missing.
    written = [job.save(step) for step in range(1, 5)]
    assert checkpoints.list_checkpoints(MODEL) == written
    assert [each.chain_length for each in written] == [1, 1, 2, 3]
    assert [keys_of(each) for each in written] == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]
    with written[1].with_local_dense() as local:
        assert open(f"{local.dense_prefix}.data").read() == "weights of 2"
    restored = LocalStore()
    restored.restore(written[3].path, written[3].tables)
    assert sorted(restored.tables["t"].keys.tolist()) == [1, 2, 3, 4]

    store.put("model/checkpoints/step-0000000004/dense.data", b"other")
    assert checkpoints.newest_whole(MODEL).step == 3
    retention.set_aside(MODEL, 3, "refused")
    assert [each.step for each in checkpoints.list_checkpoints(MODEL)] == [1, 2, 3]
    assert "model/checkpoints/refused-step-0000000004/manifest.json" in store.keys("model")

    retention.keep_best(MODEL, written[0].path)
    retention.keep_best(MODEL, written[1].path)
    retention.remove_other_bests(MODEL, 2)
    assert checkpoints.directories(MODEL, checkpoints.BEST) == [f"{MODEL}/best/step-0000000002"]
    assert checkpoints.whole(MODEL, 2, [checkpoints.BEST]).examples == 2
    retention.remove_old(MODEL, keep=1)
    assert [each.step for each in checkpoints.list_checkpoints(MODEL)] == [1, 3]  # 2 and 3 are one chain.
    assert not [key for key in store.keys("model") if "checkpoints/step-0000000002" in key or "draft" in key]
    with pytest.raises(UserError, match="there is no checkpoint of step 9 in s3://tests/model; there are: 1, 3"):
        checkpoints.whole(MODEL, 9)
    history = EvaluationHistory([{"step": 3, "auc": 0.5}])
    history.save(MODEL)
    assert EvaluationHistory.load(MODEL) == history


def test_a_store_that_does_not_answer_does_not_make_a_checkpoint_a_damaged_one(store, monkeypatch, caplog):
    model = f"s3://{object_store.BUCKET}/outage"
    job = Job(model)
    for step in (1, 2):
        job.save(step)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for name in ("step-0000000002/manifest.json", "step-0000000002/dense.data"):
        with FailingProxy(store.host_port, failing=f"GET /{object_store.BUCKET}/outage/checkpoints/{name}") as proxy:
            seen = f"{model}?endpoint_override={proxy.address}&scheme=http"
            looks = [lambda: checkpoints.newest_whole(seen), lambda: checkpoints.whole(seen, 2)]  # noqa: B023
            looks += [lambda: checkpoints.list_checkpoints(seen)] if "manifest" in name else []  # noqa: B023
            for look in looks:
                with pytest.raises(UserError) as raised:
                    look()
                assert is_loss(raised.value), raised.value
    assert "REFUSED" not in caplog.text
    assert checkpoints.newest_whole(model).step == 2


def test_full_checkpoints_cut_the_chain_and_removals_leave_every_file_of_a_kept_checkpoint(store):
    model = f"s3://{object_store.BUCKET}/chains"
    job, chains = Job(model, full_every=2), []
    for step in range(1, 7):
        chains.append(job.save(step).chain_length)
        retention.remove_old(model, keep=1)
        kept = checkpoints.list_checkpoints(model)
        for each in kept:
            each.verify()
            restored = LocalStore()
            restored.restore(each.path, each.tables)
            keys = np.arange(1, each.step + 1)
            assert sorted(restored.tables["t"].keys.tolist()) == keys.tolist()
            np.testing.assert_array_equal(restored.pull("t", keys), job.store.pull("t", keys))
    assert chains == [1, 1, 2, 1, 2, 1]
    assert [each.step for each in kept] == [5, 6]
    files = {f"{each.path}/{entry['file']}" for each in kept for entry in (*each.tables, *each.dense)}
    manifests = {f"{each.path}/{checkpoints.MANIFEST}" for each in kept}
    assert {f"s3://{object_store.BUCKET}/{key}" for key in store.keys("chains")} == files | manifests
