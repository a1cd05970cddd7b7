"""Real services in processes of their own, on a real socket."""

import concurrent.futures
import sys

import numpy as np
import pytest

from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.local_service import LocalService
from ctr_trainer.embedding.service.security import ClientSecurity
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.lease import Owner
from tests.parallel import launch

TIMEOUT = 60.0
TOKEN = "the token of the tests"
LEASE = Owner.new("tests")
CONFIG = TableConfig("t", (2, 1), (0.1, 0.0), "sgd", seed=5)


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("services")


@pytest.fixture
def start(data_dir, monkeypatch):
    """start(n) -> n running services; they end with the test.

    They start by `launch.warm_python`, which a test of the process itself switches off: start(n, is_warm=False).
    """
    services = []

    def start(count=1, is_warm=True):
        with monkeypatch.context() as patched, concurrent.futures.ThreadPoolExecutor(count) as threads:
            if is_warm:
                patched.setattr(sys, "executable", launch.warm_python())
            services.extend(
                threads.map(lambda _: LocalService(data_dir, data_dir / "log", TIMEOUT, TOKEN), range(count))
            )
        return services[-count:]

    yield start
    for service in services:
        service.stop()


@pytest.fixture
def connect():
    """connect(addresses, ...) -> a ServiceClient that is closed with the test; all are of one training by default."""
    clients = []

    def connect(addresses, timeout=TIMEOUT, security=None, lease=LEASE, **settings):
        clients.append(ServiceClient(addresses, timeout, security or ClientSecurity(TOKEN), lease, **settings))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def client(start, connect):
    """A client of one service with the empty table `t`."""
    (service,) = start()
    client = connect([service.address])
    client.create_table(CONFIG)
    return client


def ones(count):
    return np.ones((count, CONFIG.width), np.float32)
