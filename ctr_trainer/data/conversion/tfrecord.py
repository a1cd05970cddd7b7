"""The `tfrecord` format: TFRecord files of `tf.train.Example`, uncompressed or compressed with gzip."""

import contextlib
import functools
import gzip
import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from ctr_trainer.data import typed
from ctr_trainer.data.blocks import BadRow, Block
from ctr_trainer.data.source import SourceFile
from ctr_trainer.data.typed import Use
from ctr_trainer.features.host_function import calling_thread_config
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1
_RECORDS = 4096  # Number of records per batch. The first batch of a file is searched for features.
_GZIP = b"\x1f\x8b"
_GZIP_SIZE = 4  # Bytes at the end of a gzip file that contain the uncompressed size, modulo 2^32.
_AROUND = 16  # Bytes around a record: a length and two checksums.
_PIECE = 1 << 20
_CUT = "; a truncated or damaged file must be written again"
_NO_HEADER = "corrupted record at 0 "
# The parts of TensorFlow's messages about the graph: a traceback up to "Node: ...", and "[[{{node NAME}}]]" at the end.
_OF_GRAPH = re.compile(r"^Graph execution error:.*?\nNode: '[^']*'\n|\s*\[\[.*", re.DOTALL)
_KINDS = {"bytes_list": tf.string, "int64_list": tf.int64, "float_list": tf.float32}


def read(files: Iterable[SourceFile], spec: FeatureSpec | None, time: str | None) -> Iterator[Block]:
    """Yields blocks of the columns that the spec needs, one column per feature; see `typed` for lists.

    Without a spec, they are lists of all features. The first records of a file determine whether a feature has bytes,
    integers or floats. A feature that these records lack has the same kind as in the previous files.
    """
    wanted, kinds = typed.uses(spec, time), dict[str, str]()
    with contextlib.closing(ExampleReader(wanted)) as reader:
        for file in files:
            first = 0
            # TensorFlow reads local files only, so a remote file is copied to the local disk while it is read.
            with (
                _naming(file.path),
                path_of(file.path).local_file() as local,
                contextlib.closing(_records(local, file.path)) as blocks,
            ):
                for records in blocks:
                    if not wanted or not first:
                        kinds = kinds | _kinds(records, wanted)
                        typed.check(wanted, [*kinds, *file.partitions], file.path, spec)
                        reader.use(kinds)
                    table, misfits = reader.parse(records) if kinds else (pa.table({}), list(range(len(records))))
                    table = file.complete(table, wanted or file.partitions)
                    numbers = first + 1 + np.delete(np.arange(len(records)), misfits)
                    bad = [BadRow(file.path, first + row + 1, *_fault(records[row], kinds)) for row in misfits]
                    yield functools.partial(typed.as_chunk, table, wanted, file.path, numbers, misfits=bad)
                    first += len(records)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Replaces an OSError of reading a file by a UserError that names it."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}; it must exist and be readable") from error


def _records(local: str | os.PathLike, path: str) -> Generator[np.ndarray, None, None]:
    """Yields the records of a local file as object arrays of bytes. `path`, the original of a copy, is for messages."""
    with open(local, "rb") as file:
        compressed = file.read(len(_GZIP)) == _GZIP
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    with tf.Graph().as_default() as graph, tf.device("/CPU:0"):
        data = tf.data.TFRecordDataset(str(local), "GZIP" if compressed else "").batch(_RECORDS).with_options(options)
        following = tf1.data.make_one_shot_iterator(data).get_next()
    read = size = 0
    with contextlib.closing(tf1.Session(graph=graph, config=calling_thread_config())) as session:
        while True:
            try:
                records = session.run(following)
            except tf.errors.OutOfRangeError:
                _check_whole(local, path, compressed, size, read)
                return
            except tf.errors.OpError as error:
                raise UserError(_unreadable(path, read, _OF_GRAPH.sub("", error.message).strip())) from error
            yield records
            read += len(records)
            size += sum(map(len, records)) + _AROUND * len(records)


def _unreadable(path: str, read: int, reason: str) -> str:
    if _NO_HEADER in f"{reason} ":
        return (
            f"{path}: is not a TFRecord file, because it does not begin with a record. If it is text, rename it to end "
            "in .csv or .tsv, or convert it as format csv"
        )
    return f"{path}: cannot be read after record {read}: {reason}{_CUT}"


def _check_whole(local: str | os.PathLike, path: str, compressed: bool, size: int, read: int) -> None:
    """Raises UserError if a file is not as long as its records, which TensorFlow does not check."""
    found = _gzip_size(local, path, size, read) if compressed else os.path.getsize(local)
    if found != size:
        raise UserError(f"{path}: after {read} valid records, {found - size} bytes are not a record{_CUT}")


def _gzip_size(local: str | os.PathLike, path: str, size: int, read: int) -> int:
    """Returns the uncompressed size of a gzip file. Decompresses the file only if its size field is not `size`."""
    with open(local, "rb") as file:
        file.seek(-_GZIP_SIZE, os.SEEK_END)
        if int.from_bytes(file.read(), "little") == size % 2 ** (8 * _GZIP_SIZE):
            return size
    found = 0
    try:
        with gzip.open(local) as file:
            while piece := file.read(_PIECE):
                found += len(piece)
    except (EOFError, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: after {read} valid records: {error}{_CUT}") from error
    return found


def _kinds(records: np.ndarray, wanted: Mapping[str, Use]) -> dict[str, str]:
    """Returns the kind of each feature that occurs in the records, in the order of `wanted`, or of all by name."""
    found: dict[str, str] = {}
    for record in records:
        with contextlib.suppress(Exception):  # If the record is not an Example, the parser reports it with its row.
            for name, feature in tf.train.Example.FromString(record).features.feature.items():
                if (not wanted or name in wanted) and name not in found and (kind := feature.WhichOneof("kind")):
                    found[name] = kind
        if wanted and len(found) == len(wanted):
            break
    return {
        name: found[name] for name in wanted or sorted(found) if name in found
    }  # Protobuf's maps have a random order.


def _fault(record: bytes, kinds: dict[str, str]) -> tuple[str | None, Any, str]:
    """Describes a record that cannot be parsed: the column or None, the found value, and the expected value."""
    with contextlib.suppress(Exception):
        features = tf.train.Example.FromString(record).features.feature
        for name, kind in kinds.items():
            found = features[name].WhichOneof("kind") if name in features else None
            if found not in (None, kind):
                return name, found, f"{kind}, as in the first records"
    return None, record[:40], "a serialized tf.train.Example"


class ExampleReader:
    """Parses batches of serialized `tf.train.Example` in its own graph and session."""

    def __init__(self, wanted: Mapping[str, Use]) -> None:
        self._wanted = wanted
        self._kinds: dict[str, str] = {}
        self._session: tf.compat.v1.Session | None = None

    def read(self, records: np.ndarray) -> Iterator[tuple[pa.Table, np.ndarray, list[tuple[int, str]]]]:
        """Yields (table of the wanted features of valid records, their indices, [(index, what is wrong with it), ...]).

        A table has one kind of each feature: bytes, integers or floats. Records of other kinds have other tables.
        """
        rows = np.arange(len(records))
        kinds = _kinds(records, self._wanted) | self._kinds
        if not kinds:
            yield pa.table({}), rows[:0], [(row, "has none of the spec's features") for row in rows.tolist()]
            return
        self.use(kinds)
        table, misfits = self.parse(records)
        yield table, np.delete(rows, misfits), []
        groups: list[tuple[dict[str, str], list[int]]] = []
        for row in misfits:
            own = _kinds(records[row : row + 1], self._wanted)
            for kinds, of_group in groups:
                if all(kinds.get(name, kind) == kind for name, kind in own.items()):
                    kinds.update(own)
                    of_group.append(row)
                    break
            else:
                groups.append((own, [row]))
        for kinds, of_group in groups:
            self.use(self._kinds | kinds)
            table, misfits = self.parse(records[of_group])
            wrong = []
            for row in (of_group[at] for at in misfits):
                column, value, expected = _fault(records[row], self._kinds)
                wrong.append((row, (f"feature {column!r}: " if column else "") + f"{value!r} is not {expected}"))
            yield table, np.delete(np.array(of_group), misfits), wrong

    def use(self, kinds: dict[str, str]) -> None:
        """Sets the features that `parse` reads. `kinds` maps each name to a key of `_KINDS`."""
        if kinds == self._kinds:
            return
        self.close()
        with tf.Graph().as_default() as graph, tf.device("/CPU:0"):
            self._serialized = tf1.placeholder(tf.string, [None])
            features = {name: tf.io.RaggedFeature(_KINDS[kind]) for name, kind in kinds.items()}
            parsed = tf.io.parse_example(self._serialized, features)
            self._fetches = {name: (ragged.row_splits, ragged.values) for name, ragged in parsed.items()}
        self._kinds, self._session = kinds, tf1.Session(graph=graph, config=calling_thread_config())

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def parse(self, records: np.ndarray, first: int = 0) -> tuple[pa.Table, list[int]]:
        """Returns (table of the valid records, with one list column per feature; indices of the invalid records).

        Indices are counted from `first`. Bisection finds the records that are no Example or have a feature of another
        kind.
        """
        try:
            return self._table(records), []
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError):  # The message of an error may contain any bytes.
            if len(records) == 1:
                return self._table(records[:0]), [first]
        half = len(records) // 2
        tables, misfits = zip(self.parse(records[:half], first), self.parse(records[half:], first + half), strict=True)
        return pa.concat_tables(tables), sum(misfits, [])

    def _table(self, records: np.ndarray) -> pa.Table:
        assert self._session is not None
        columns = self._session.run(self._fetches, {self._serialized: records})
        return pa.table(
            {
                name: pa.ListArray.from_arrays(
                    pa.array(splits.astype(np.int32)),
                    pa.array(values, pa.binary()) if values.dtype == object else pa.array(values),
                )
                for name, (splits, values) in columns.items()
            }
        )
