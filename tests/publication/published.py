"""A publication for tests: written as a training writes it, and the state that a reader of it has to have."""

import contextlib
import json

import numpy as np

from ctr_trainer.embedding.snapshot import packed_rows
from ctr_trainer.embedding.snapshot.packed_rows import pack, unpack, value_bytes
from ctr_trainer.embedding.snapshot.snapshot import key_array
from ctr_trainer.embedding.snapshot.snapshot_writer import arrow_file
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.live.publication import records
from ctr_trainer.live.publication.delivery import Delivery
from ctr_trainer.live.publication.places import open_reader
from ctr_trainer.live.publication.records import Record
from ctr_trainer.system.files.paths import bytes_and_crc32, path_of

CONFIG = TableConfig("dim3", (2, 1), (0.01, 0.0))
TOWER = "saved_model.pb"
KEYS = np.arange(0, 3000, dtype=np.int64)


class Published:
    """Writes a publication epoch by epoch. Every weight of a row is a function of its key and its epoch.

    Attributes:
      state: {key: epoch of its row} after the last epoch.
      record: the last `Record`.
    """

    def __init__(self, url, generation=1, dtype="float32", rows=range(1, 9), holder="a", time=0.0, **of_record):
        self.url, self.generation, self.dtype, self.state, self._of_record = str(url), generation, dtype, {}, of_record
        self._holder, self._time = holder, time
        self._write("base", 0, rows, ())

    def epoch(self, changed=(), removed=(), number=None):
        """Writes the next epoch."""
        return self._write("epoch", self.record.epoch + 1 if number is None else number, changed, removed)

    def base(self):
        """Writes a base of the state after the last epoch, as a compaction does."""
        return self._write("base", self.record.epoch, sorted(self.state), (), self.state)

    def weights(self, keys, state=None):
        """Returns float32[n, 3], the weights that a reader has to return."""
        state = self.state if state is None else state
        keys = np.asarray(keys, np.int64)
        epochs = np.array([state.get(int(key), -1) for key in keys], np.int64)
        rows = weights_of(keys, epochs)
        packed = pack(rows, CONFIG, self.dtype, 0)
        return np.where((epochs < 0)[:, None], np.float32(0), unpack(packed, CONFIG, self.dtype)[0])

    def _write(self, kind, epoch, changed, removed, epochs=None):
        directory, name = records.generation_path(self.url, self.generation), records.name_of(kind, epoch)
        (directory / name).mkdir(parents=True, exist_ok=True)
        keys, gone = np.array(list(changed), np.int64), np.array(list(removed), np.int64)
        of_rows = np.array([(epochs or {}).get(int(key), epoch) for key in keys], np.int64)
        values = np.empty((len(keys), value_bytes(CONFIG, self.dtype)), np.uint8)
        for each in np.unique(of_rows):
            own = of_rows == each
            values[own] = pack(weights_of(keys[own], of_rows[own]), CONFIG, self.dtype, each)
        files = [self._file(directory, name, "rows", [key_array(keys), packed_rows.value_array(values)])]
        if len(gone):
            files.append(self._file(directory, name, "removed", [key_array(gone)]))
        if kind == "base" and epoch:
            dense_files = self.record.dense_files
        else:
            path = directory / records.name_of(records.DENSE, epoch) / TOWER
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"tower {self.generation} {epoch}")
            dense_files = [{"file": TOWER, **dict(zip(("bytes", "crc32"), bytes_and_crc32(path), strict=True))}]
        tables = json.loads(json.dumps([{"config": CONFIG.to_dict()}]))
        self.record = Record(
            "deepfm", self.generation, self._holder, epoch, kind, 100 * epoch, self._time + epoch, self.dtype, tables,
            files, dense_files, **self._of_record,
        )  # fmt: skip
        records.write_record(self.url, self.record)
        if kind == "epoch" or not epoch:
            self.state.update({int(key): epoch for key in keys})
            for key in gone:
                self.state.pop(int(key), None)
        return self.record

    def _file(self, directory, name, kind, columns):
        file = f"{name}/{packed_rows.file_name(CONFIG.name, kind)}"
        with arrow_file(path_of(directory), file, packed_rows.schema(CONFIG, self.dtype, kind)) as writing:
            writing.write(columns)
            written = writing.finish()
        return dict(file=file, table=CONFIG.name, kind=kind, **written)


def weights_of(keys, epochs):
    """Returns float32[n, 3], the weights of rows."""
    return np.stack([keys % 1000, epochs, -(keys % 7)], axis=1).astype(np.float32)


def tower_of(reader, record=None):
    """Returns the text of a reader's tower."""
    with reader.tower(record or reader.record) as path:
        return (path_of(path) / TOWER).read_bytes().decode()


def deliver_all(spool, target):
    """Delivers all records of a spool."""
    delivery = Delivery(spool, lambda: target)
    while delivery.step() is not None:
        pass


def assert_there(url, published, generation=None):
    """Asserts that a reader of a place has the state of what was published, as this generation of the place."""
    with contextlib.closing(open_reader(url, cache_rows=0)) as reader:
        np.testing.assert_array_equal(reader.read("dim3", KEYS)[0], published.weights(KEYS))
        assert reader.record.epoch == published.record.epoch
        assert generation in (None, reader.record.generation)
        assert tower_of(reader) == f"tower {published.generation} {published.record.epoch}"
