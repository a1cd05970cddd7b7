"""The jobs of benchmarks/peers.py."""

import pathlib
import sys

import numpy as np
import pytest

from ctr_trainer.bench import workload
from ctr_trainer.messages.errors import UserError

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import peers

    return peers


def test_batches_and_sizes_are_the_same_after_their_file(peers, tmp_path):
    import peer

    written = workload.arrays(8)
    peers.write_workload(tmp_path, 8, 0)
    read, sizes = peer.read_batches(tmp_path, 0)
    for one, other in zip(written, read, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (sizes["vocabulary"], sizes["dim"], sizes["hidden_units"]) == (2_000_000, 16, [256, 128, 64])


def test_a_peer_that_is_not_installed_is_named_with_what_installs_it(peers):
    absent = peers.Peer("Absent", "peer_absent.py", "no_such_package", "no-such-package")
    assert peers._missing(absent, sys.executable) == "not installed: pip install no-such-package"
    assert peers._missing(peers.PEERS["in_graph"], sys.executable) == ""


def test_an_interpreter_of_a_peer_is_taken_and_a_wrong_one_refused(peers):
    assert peers._pythons(["tfra=/env/bin/python"])["tfra"] == "/env/bin/python"
    assert peers._pythons([])["torch"] == sys.executable
    for wrong in ("tfra", "=python", "keras=/env/bin/python"):
        with pytest.raises(UserError, match="expected NAME=PATH, with a name of in_graph, torch, tfra"):
            peers._pythons([wrong])
    with pytest.raises(UserError, match="cannot run /no/such/python"):
        peers._missing(peers.PEERS["torch"], "/no/such/python")


@pytest.mark.integration
def test_two_workers_with_variables_in_the_graph_train(peers, tmp_path):
    for rank in range(2):
        peers.write_workload(tmp_path / "data", 32, rank)
    job = peers.PeerJob("in graph", peers.PEERS["in_graph"], 2, sys.executable, str(tmp_path / "data"), 3, 1)
    results = job.run(tmp_path / "run", timeout=200)
    assert [each["rank"] for each in results] == [0, 1]
    assert all(each["examples_per_sec"] > 0 and each["version"].startswith("tensorflow ") for each in results)
