"""What a cluster says that it has: the record that readers serve, and what its publisher needs to go on."""

import dataclasses
import json

from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication.cluster import CONTROL, Cluster
from ctr_trainer.publication.cluster_keys import control_name
from ctr_trainer.publication.records import Record

_FORMAT = 2


@dataclasses.dataclass(frozen=True)
class ClusterState:
    """The state of a publication in a cluster, under one name.

    Attributes:
      holder: of the generation.
      since: seconds since 1970, at which the first record of the generation was committed.
      before: the generation that was the current one until then; 0 if there was none.
      record: the `Record`; its generation is the cluster's.
    """

    holder: str
    since: float
    before: int
    record: Record

    @property
    def place(self) -> tuple[str, int, int]:
        """What differs between any two records that were ever committed."""
        return self.holder, self.record.generation, self.record.epoch

    def to_json(self) -> str:
        """Returns what `read_state` reads."""
        values = {"format": _FORMAT, "holder": self.holder, "since": self.since, "before": self.before}
        return json.dumps({**values, "record": self.record.to_dict()})


def read_state(cluster: Cluster) -> ClusterState | None:
    """Returns the `ClusterState`; None if nothing is published.

    Raises:
      UserError: the cluster does not answer, or what it has is of another version.
    """
    name = control_name(cluster.name, "state")
    (text,) = cluster.run([(CONTROL, ("GET", name))])
    if text is None:
        return None
    where = f"{cluster.url}, {name}"
    try:
        values = json.loads(text)
        if values.pop("format") != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}")
        return ClusterState(**{**values, "record": Record.from_dict(values["record"], where)})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{where}: is no publication of this version of ctr_trainer: {error}; delete it, then publish again"
        ) from None
