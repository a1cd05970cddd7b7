"""Services that a training starts for itself, some before it needs them."""

import contextlib
import os

import psutil
import pytest

from ctr_trainer.commands.experiment.experiment import Experiment, ModelSettings
from ctr_trainer.commands.train import services_ahead
from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.local_service import LocalServices
from ctr_trainer.embedding.service.security import ClientSecurity
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.messages.errors import UserError
from tests.service.conftest import CONFIG, LEASE, TIMEOUT

pytestmark = pytest.mark.integration


def test_services_that_were_started_ahead_are_those_that_run(tmp_path):
    services = LocalServices(2, tmp_path, TIMEOUT)
    services.start()
    services.start()  # It has begun: there are no others.
    with services.running() as running:
        assert len(_children()) == len(running) == 2
        assert len({service.token for service in running}) == 1
        security = ClientSecurity(running[0].token)
        client = ServiceClient([service.address for service in running], TIMEOUT, security, LEASE)
        client.create_table(CONFIG)
        client.close()
    assert not _children()
    services.start()
    services.close()  # No block took these.
    assert not _children()
    assert sorted(path.name for path in tmp_path.glob("*.log")) == ["service-1.log", "service.log"]


def test_each_block_has_services_of_its_own_all_whose_threads_move_to_its_cores(tmp_path):
    services, pids, core = LocalServices(1, tmp_path, TIMEOUT), set(), {min(os.sched_getaffinity(0))}
    for _ in range(2):
        with services.running(core) as (service,):
            threads = os.listdir(f"/proc/{service.pid}/task")
            assert len(threads) > 1
            assert all(os.sched_getaffinity(int(thread)) == core for thread in threads)
            pids.add(service.pid)
    assert len(pids) == 2


def test_services_that_cannot_start_are_refused_by_the_block_and_not_before(tmp_path):
    (tmp_path / "file").write_text("")
    services = LocalServices(2, tmp_path / "file" / "model", TIMEOUT)
    services.start()
    with pytest.raises((UserError, OSError), match="file"), services.running():
        pass
    assert not _children()


@pytest.mark.parametrize(
    ("place", "service", "started"),
    [
        ("0 2 0 2", "auto", 1),
        ("1 2 1 2", "auto", 0),
        ("0 1 0 1", "auto", 0),
        ("0 4 0 2", "auto", 0),  # Of two hosts.
        ("0 2 0 2", "shared", 0),
        ("0 2 0 2", "host:7700", 0),
    ],
)
def test_rank_0_starts_the_services_ahead_if_its_training_will_use_them(tmp_path, monkeypatch, place, service, started):
    for what, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), place.split(), strict=True):
        monkeypatch.setenv(f"HOROVOD_{what}", value)
    run = RunConfig(embedding=EmbeddingConfig(service=service, service_timeout=TIMEOUT))
    experiment = Experiment(model=ModelSettings(model_dir=str(tmp_path)), run=run)
    with services_ahead(experiment):
        pass
    assert not _children()
    assert len(list(tmp_path.glob("service.log"))) == started


def _children():
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # It has ended.
            found += [child] if "serve" in child.cmdline() else []
    return found
