"""The fence of a publication in a cluster: a lease that one publisher renews."""

import contextlib
import json
import time

from ctr_trainer.files.lease import LeaseRenewal, has_ended, new_owner, owner_name
from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication.cluster import Cluster
from ctr_trainer.publication.cluster_keys import control_name

_LOOK_SECONDS = 0.2
_RENEW = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2])"
_TAKE_OVER = "return redis.call('GET', KEYS[1]) == ARGV[3] and redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])"
_GIVE_BACK = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1])"


class ClusterFence:
    """Holds the lease until `close`, or until some time after this process ended; a thread renews it.

    The lease of a publisher that was killed on this machine is taken over at once, and that of another one when it was
    not renewed in time.

    Args:
      cluster: `Cluster`.
      lease_secs: how long a lease lives without a renewal.

    Attributes:
      name: of the lease.
      token: its value; a script that writes a record makes sure that it is still there.
      lease_ms: as the script sets it.

    Raises:
      UserError: another process renews the lease; the message names it.
      ClusterFull: nobody has the lease, and the cluster has no room for it.
    """

    def __init__(self, cluster: Cluster, lease_secs: float):
        self._cluster, self.lease_ms = cluster, int(lease_secs * 1000)
        self.name = control_name(cluster.name, "fence")
        self.token = json.dumps(new_owner())
        self._take()
        self._renewal = LeaseRenewal(lease_secs, self._renew, "publication fence")

    def refusal(self, token: str | bytes) -> UserError:
        """Returns the UserError of a lease that another process has."""
        return UserError(
            f"{self._cluster.url}: {owner_name(_values(token))} publishes there now; wait for its end, or "
            "publish under another name"
        )

    def close(self) -> None:
        """Gives the lease back."""
        self._renewal.close()
        with contextlib.suppress(UserError), self._cluster.told():
            self._cluster.client.eval(_GIVE_BACK, 1, self.name, self.token)

    def _take(self) -> None:
        from redis.exceptions import OutOfMemoryError

        client, left, full = self._cluster.client, None, None
        while True:
            with self._cluster.told():
                try:
                    if client.set(self.name, self.token, nx=True, px=self.lease_ms):
                        return
                except OutOfMemoryError as error:  # Also if another process has the lease.
                    full = error
                before, left = left, client.pttl(self.name)
                holder = client.get(self.name)
                is_free = holder is None or has_ended(_values(holder))
                if full is not None and is_free:
                    raise full
                if holder is not None and is_free:
                    client.eval(_TAKE_OVER, 1, self.name, self.token, self.lease_ms, holder)
                    if client.get(self.name) == self.token.encode():
                        return
            if holder is not None and before is not None and left > before:
                raise self.refusal(holder)
            time.sleep(_LOOK_SECONDS)

    def _renew(self) -> bool:
        with self._cluster.told():
            self._cluster.client.eval(_RENEW, 1, self.name, self.token, self.lease_ms)
        return True


def _values(token: str | bytes) -> dict:
    """Returns what a token says; an empty dict if it is none of ours."""
    with contextlib.suppress(ValueError):
        values = json.loads(token)
        if isinstance(values, dict):
            return values
    return {}
