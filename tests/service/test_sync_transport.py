"""`--sync_transport`: whether a sync's rows go through the socket, by a proxy that cuts the connection if they do."""

import numpy as np
import pytest

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.estimator.open_store import open_store
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.embedding_config import EmbeddingConfig, SecurityFiles
from tests.service.conftest import CONFIG, TOKEN, ones
from tests.service.proxy import CuttingProxy

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not SharedMemory.is_possible(), reason="this system has no memfd_create(2)"),
]


@pytest.mark.parametrize(("transport", "cuts"), [("auto", 0), ("socket", 1)])
def test_rows_go_through_the_socket_only_if_that_is_asked_for(start, tmp_path, transport, cuts):
    distributed.init()
    (service,) = start()
    token = tmp_path / "token"
    token.write_text(TOKEN)
    proxy, keys = CuttingProxy(service.address), np.arange(1, 20_001)
    config = EmbeddingConfig(
        service=proxy.address, security=SecurityFiles(token_file=str(token)), sync_transport=transport
    )
    try:
        with open_store(config, str(tmp_path)) as store:
            store.create_table(CONFIG)
            before = store.pull("t", keys)
            proxy.cut_after(upward=100_000)  # The rows of the sync below are 400 kB.
            store.sync("t", keys, ones(len(keys)), "w", 1)
            assert proxy.cuts == cuts
            np.testing.assert_array_equal(store.pull("t", keys), before + 1)
    finally:
        proxy.close()
