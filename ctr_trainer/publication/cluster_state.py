"""What a cluster says that it has: the record that readers serve, and what its publisher needs to go on."""

import dataclasses
import json

from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication.cluster_keys import control_name
from ctr_trainer.publication.records import FORMAT, Record


@dataclasses.dataclass(frozen=True)
class ClusterState:
    """The state of a publication in a cluster, under one name.

    Attributes:
      holder: of the generation.
      since: seconds since 1970, at which the generation became the current one.
      marks: the buckets that have a mark of the record, one for each primary of that time.
      record: the `Record`; its generation is the cluster's.
    """

    holder: str
    since: float
    marks: list
    record: Record

    def to_json(self):
        """-> str."""
        values = {"format": FORMAT, "holder": self.holder, "since": self.since, "marks": self.marks}
        return json.dumps({**values, "record": self.record.to_dict()})


def read_state(cluster):
    """-> the `ClusterState`; None if nothing was published yet.

    Raises:
      UserError: the cluster does not answer, or what it has is of another version.
    """
    name = control_name(cluster.name, "state")
    with cluster.told():
        text = cluster.client.get(name)
    if text is None:
        return None
    where = f"{cluster.url}, {name}"
    try:
        values = json.loads(text)
        if values.pop("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}")
        return ClusterState(**{**values, "record": Record.from_dict(values["record"], where)})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{where}: is no publication of this version of ctr_trainer: {error}; delete it") from None
