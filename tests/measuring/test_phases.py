"""The table of phases, and where its names come out."""

from ctr_trainer.estimator.hooks.step_trace_hook import PURPOSES
from ctr_trainer.system.measuring.clock import PHASES, STEP_TITLES, TABLE


def test_no_name_stands_for_two_phases():
    for names in (
        [phase.name for phase in TABLE],
        [phase.log_name for phase in TABLE if phase.log_name],
        [phase.operation for phase in TABLE if phase.operation],
    ):
        assert len(set(names)) == len(names)


def test_the_names_that_users_search_the_log_for_stay():
    assert [(phase.log_name, phase.operation) for phase in TABLE if phase.log_name] == [
        ("StepReadWait", "OpsReadSample"),
        ("StepLookup", "OpsEmbeddingLookup"),
        ("StepRowUpdate", "OpsPushGrad"),
        ("StepSyncWait", "OpsParameterSync"),
    ]
    assert PHASES["update"].operation == "OpsPushGrad"


def test_the_names_of_a_step_s_phases_stay_in_their_order():
    assert list(STEP_TITLES) == [
        *("read_sample", "embedding_lookup", "input_to_device", "forward", "loss", "backward", "exchange"),
        *("dense_update", "push", "sync", "dense_sync", "hooks", "checkpoint", "evaluation"),
    ]


def test_what_a_trace_tells_are_the_phases_in_the_graph():
    assert {phase.name for phase in TABLE if phase.in_graph} == set(PURPOSES)
    assert {phase.step_name for phase in TABLE if phase.in_graph} == set(PURPOSES)


def test_a_heartbeat_has_room_for_each_name():
    assert max(map(len, PHASES)) <= 16
