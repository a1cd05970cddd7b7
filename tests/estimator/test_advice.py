import pytest

from ctr_trainer.estimator import EmbeddingConfig, RunConfig
from ctr_trainer.estimator.advice import Circumstances, advise
from ctr_trainer.system.measuring.clock import PHASES
from ctr_trainer.system.processes import hardware


def _advise(shares, exchange=0.0, workers=2, on_one_host=True, each_step=True, steps=1000, embedding=None, **more):
    shares = {**dict.fromkeys(PHASES, 0.0), **shares, "exchange": exchange, "syncing": more.pop("syncing", 0.0)}
    where = {
        name: more.pop(name)
        for name in ("exchanges_in_memory", "has_free_core", "has_limits", "silent", "has_histories")
        if name in more
    }
    config = RunConfig(embedding=EmbeddingConfig(**(embedding or {})), **more)
    return advise(Circumstances(shares, steps, workers, on_one_host, config, each_step, **where))


@pytest.mark.parametrize(
    ("circumstances", "flag"),
    [
        (dict(shares={"read": 0.2}, prefetch_batches=0), "--prefetch_batches=4"),
        (dict(shares={"read": 0.2}), "--prefetch_batches=8"),
        (dict(shares={"sync": 0.06}), "--embedding_service=shared"),
        (dict(shares={"sync": 0.06}, on_one_host=False), "--service_shards=2"),
        (dict(shares={"sync": 0.06}, has_limits=True), "--embedding_service=shared"),
        (dict(shares={"sync": 0.06}, embedding={"service_restarts": 1}), "--service_shards=2"),
        (dict(shares={"sync": 0.06}, embedding={"service": "a:1"}), "--sync_steps=60"),
        (dict(shares={}, syncing=0.3), "--embedding_service=shared"),
        (dict(shares={"session": 0.8}, exchange=0.4, syncing=0.3), "--embedding_service=shared"),
        (dict(shares={"sync": 0.06}, embedding={"strict_sync": True}), "--nostrict_sync"),
        (dict(shares={"session": 0.8}, exchange=0.3), "--overlap_allreduce or --dense_sync_steps=30"),
        (dict(shares={"session": 0.8}, exchange=0.3, exchanges_in_memory=True), "--dense_sync_steps=30"),
        (dict(shares={"lookup": 0.1, "update": 0.05}, has_free_core=True), "--overlap_lookup"),
        (dict(shares={"checkpoint": 0.2}, save_checkpoints_steps=100), "--save_checkpoints_steps=500"),
        (dict(shares={"read": 0.2, "sync": 0.3}), "--embedding_service=shared"),  # the larger share
        (dict(shares={"session": 0.8}), "--mixed_precision=bfloat16"),
    ],
)
def test_the_flag_for_where_most_of_the_time_goes(monkeypatch, circumstances, flag):
    monkeypatch.setattr(hardware, "has_bfloat16", lambda: True)
    assert _advise(**circumstances).flag == flag


def test_bfloat16_is_not_advised_for_histories_where_it_was_slower(monkeypatch):
    monkeypatch.setattr(hardware, "has_bfloat16", lambda: True)
    assert _advise({"session": 0.8}, has_histories=True) is None


@pytest.mark.parametrize(
    "circumstances",
    [
        dict(shares={"read": 0.09, "sync": 0.05, "session": 0.8}),
        dict(shares={"session": 0.9}, exchange=0.3, each_step=False),  # it overlaps already, or is rare
        dict(shares={"sync": 0.2}, workers=1),
        dict(shares={}, syncing=0.3, workers=1),
        dict(shares={}, syncing=0.3, on_one_host=False),
        dict(shares={}, syncing=0.3, has_free_core=True),
        dict(shares={}, syncing=0.3, embedding={"service_restarts": 1}),
        dict(shares={}, syncing=0.3, embedding={"service": "a:1"}),
        dict(shares={"lookup": 0.2}),  # no core is free
        dict(shares={"lookup": 0.2}, has_free_core=True, has_limits=True),
        dict(shares={"lookup": 0.2}, has_free_core=True, embedding={"overlap_lookup": True}),
        dict(shares={"checkpoint": 0.3}, save_checkpoints_steps=2000),  # the one at the end
        dict(shares={"read": 0.9}, steps=99),
        # Batches come late while their rows are waited for from a service that stands still.
        dict(shares={"read": 0.4, "session": 0.5}, silent=0.35),
        dict(shares={"sync": 0.3}, exchange=0.3, syncing=0.4, silent=0.3),
    ],
)
def test_where_no_flag_would_help_none_is_named(monkeypatch, circumstances):
    monkeypatch.setattr(hardware, "has_bfloat16", lambda: False)
    assert _advise(**circumstances) is None
