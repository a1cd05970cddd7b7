"""What a trainer sees of the place where its embedding rows are kept."""

import abc

from ctr_trainer.embedding.store.row_codec import PLAIN


class Store(abc.ABC):
    """Embedding tables by name, shared by the workers of a job.

    Keys are int64[U], distinct within a call and not 0; rows and deltas are float32[U, width] as TableConfig lays them
    out. A user's mistake, and a store that is gone, raise UserError.

    A row has a version, uint32, which each push to it changes: 0 for a row that is not there and reads as its initial
    row. Versions are comparable for one key only, and only within one life of the store.

    Attributes:
      silent_seconds: how long a request waited for a store that did not answer; 0 of one in this process.
      is_guarded: whether a store that is lost answers all the same, see `Guard`.
      lost: the ServiceLost that a guarded store has met; None if it has met none.
      host_memory: `SharedMemory` for one copy of the rows a host; None if each worker has copies of its own.
    """

    silent_seconds = 0.0
    is_guarded = False
    lost = None
    host_memory = None

    @abc.abstractmethod
    def create_table(self, config):
        """Makes an empty table; a table that is there with the same TableConfig stays as it is."""

    def worker_rows(self, config, copies):
        """-> the `WorkerRows` of a table that `create_table` made: a worker's copies of them.

        Args:
          config: its TableConfig.
          copies: f(Store, TableConfig) -> `WorkerRows`; not called by a store of this process, whose rows need none.
        """
        return copies(self, config)

    @abc.abstractmethod
    def pull(self, table, keys, missing="initial"):
        """-> float32[U, width]. A key without a row reads its initial row, or `zeros`; no row is created."""

    @abc.abstractmethod
    def pull_newer(self, table, keys, versions, codec=PLAIN):
        """-> `ChangedRows`: the rows whose version is not that of `versions` uint32[U], which the asker knows.

        Args:
          codec: `RowCodec`, which the answer's rows are encoded with.
        """

    @abc.abstractmethod
    def push(self, table, keys, deltas, worker, sequence):
        """Adds `deltas` to rows, creating missing ones at their initial values.

        Applied exactly once: a `sequence` not greater than the worker's last one for that table does nothing. So
        `worker` has to be another name each time a worker starts.
        """

    @abc.abstractmethod
    def sync(self, table, keys, deltas, worker, sequence, versions=None, codec=PLAIN):
        """`push`, and back the rows that others changed, in one round trip.

        Args:
          deltas: float32[U, width] as `codec` encodes them.
          versions: uint32[U], what the worker last saw of each row; None brings all rows back.
          codec: `RowCodec`, which the answer's rows are encoded with too.

        Returns:
          `ChangedRows`: the rows that were of another version than the worker knew, with `deltas` added. A row that is
          not among them is the one the worker knew plus its delta, to the bit. A repeated sync brings all rows back.
        """

    @abc.abstractmethod
    def advance(self, step):
        """Tells the global step, the clock of `lru` and `ttl_steps`; evicts the rows that have expired."""

    @abc.abstractmethod
    def save(self, path, step, since=None):
        """Writes every table, as it is at the moment of the call, into the directory `path`; pulls and pushes go on.

        Args:
          path: made where it is not there.
          step: the global step, which goes into the names of a delta's files.
          since: the `snapshot` that the last `save` or `restore` of this store left behind, to write only what changed
            since then. Where it is not the last one, all rows are written.

        Returns:
          for `restore`, a list of dicts: see `snapshot_writer.write`. Each `since` is None if all rows were written.
        """

    @abc.abstractmethod
    def restore(self, path, files):
        """Replaces all rows by those of a chain, from any number of shards; a bad file leaves the rows as they are.

        Args:
          path: the directory of all of its files.
          files: what `save` returned for a full snapshot, and after it for each of its deltas.
        """

    @abc.abstractmethod
    def clear(self):
        """Forgets every row; the tables stay."""

    @abc.abstractmethod
    def reopen(self):
        """Goes on with the rows as they are now.

        After a `restore` or `clear` by one of several users of a store, each of the others calls it, knowing no row of
        before; until then it is refused with ServiceLost.
        """

    @abc.abstractmethod
    def stats(self):
        """-> {"tables": {name: {"rows", "bytes", "created", "restored", "admitted", "evicted", "refused": int}}, ...}

        See `Table` for the counters.
        """

    @abc.abstractmethod
    def close(self):
        """Ends the use of the store."""
