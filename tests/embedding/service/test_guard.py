import numpy as np
import pytest

from ctr_trainer.embedding.service.guard import Guard
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.store.row_codec import CODECS
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.row_cache import RowCache
from ctr_trainer.system.messages.errors import ServiceLost, UserError

CONFIG = TableConfig("t", (2,), (0.1,), "sgd", seed=5)


class _Losable(LocalStore):
    """A store that can be lost, as a service can, and counts how often it is asked then."""

    error, asked = None, 0

    def _locked(self, name):
        if self.error is not None:
            self.asked += 1
            raise self.error
        return super()._locked(name)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_cache_goes_on_while_its_service_is_lost_and_asks_it_no_more(codec):
    store = _Losable()
    guard = Guard(store)
    cache = RowCache(guard, CONFIG, "w", codec=codec)
    keys = np.arange(1, 6)
    cache.apply_gradients(cache.find_or_create(keys), [np.ones((5, 2), np.float32)], 0.1)
    cache.flush()
    assert guard.lost is None
    saved = store.pull("t", keys)

    store.error = ServiceLost("gone")
    for step in range(3):
        some = np.arange(1, 9) + step
        cache.apply_gradients(cache.find_or_create(some), [np.ones((8, 2), np.float32)], 0.1)
        cache.flush()
    assert guard.lost is store.error
    assert store.asked == 1
    assert guard.save("nowhere", 1) == []
    store.error = None
    np.testing.assert_array_equal(store.pull("t", keys), saved)


def test_a_users_mistake_is_no_loss():
    store = _Losable()
    guard = Guard(store)
    guard.create_table(CONFIG)
    store.error = UserError("diverged")
    with pytest.raises(UserError, match="diverged"):
        guard.push("t", np.array([1]), np.ones((1, 2), np.float32), "w", 1)
    assert guard.lost is None
