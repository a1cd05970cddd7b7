"""Finds what a model keeps of single values of features, such as the id of a user, and removes it."""

import dataclasses
import functools
import itertools
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ctr_trainer.checkpoint import checkpoint as checkpoints
from ctr_trainer.checkpoint.checkpoint import Checkpoint, Entry
from ctr_trainer.checkpoint.model_directory import TrainedFeatures
from ctr_trainer.data import encode
from ctr_trainer.data.source import Source
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.snapshot.snapshot_writer import arrow_file
from ctr_trainer.embedding.table import rocks
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.features import hashing
from ctr_trainer.features.columns import TYPICAL, CrossFeature
from ctr_trainer.system.files.paths import Path
from ctr_trainer.system.messages.errors import UserError, did_you_mean, is_loss

_FEWEST_BYTES = 4  # A shorter text is found everywhere.
_BLOCK_BYTES = 8 << 20


class Value(NamedTuple):
    """A value of a feature with its key; of a cross, the values of its features, separated by blanks."""

    feature: str
    value: str
    key: int


def values_of(features: TrainedFeatures, pairs: Iterable[tuple[str, str]]) -> list[Value]:
    """Returns the `Value`s of (feature, value) pairs, and of the crosses whose features all have a value."""
    spec, statistics = features
    by_name, found = {feature.name: feature for feature in spec.sparse}, list[Value]()
    buckets = hashing.buckets_of(spec, statistics)
    for name, value in pairs:
        if (feature := by_name.get(name)) is None:
            hint = did_you_mean(name, by_name)
            raise UserError(f"{name}: the model has no such sparse feature; it has {', '.join(by_name)}{hint}")
        text = pa.array([value.encode()])
        if feature.combiner:  # It is one of the values of a list.
            keys = hashing.keys(feature.slot, text)
        else:
            encoded = encode.encoding(feature)(text)
            if encoded.bad is not None:
                raise UserError(f"{name} {value}: expected {encoded.expected}")
            keys = encode.hashed({name: encoded.column})[name].to_numpy()
        found.append(Value(name, value, int((buckets[name].keys(keys) if name in buckets else keys)[0])))
    for cross in spec.cross:
        parts = [[each for each in found if each.feature == part.name] for part in spec.crossed(cross)]
        for each in itertools.product(*parts):
            (key,) = hashing.cross_keys(cross, [np.array([part.key]) for part in each])
            found.append(Value(cross.name, " ".join(part.value for part in each), int(key)))
    return found


def rows_of(checkpoint: Checkpoint, keys: Sequence[int]) -> dict[tuple[str, int], dict[str, Any]]:
    """Returns the rows of keys by (table, key); if the table evicts rows, with the last step of their training."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    configs: dict[str, TableConfig] = {}
    for entry in snapshot.rows_files(checkpoint.tables):  # A later file has newer rows.
        table, kind = entry["table"], entry["kind"]
        config = configs[table] = snapshot.read_config(checkpoint.path, entry)
        for batch in snapshot.batches(checkpoint.path, entry) if kind != "counts" else ():
            own = batch.column("key").to_numpy()
            for at in np.flatnonzero(np.isin(own, keys)).tolist():
                place, found = (table, int(own[at])), batch.slice(at, 1).to_pylist()[0]
                if kind == "removed":
                    rows.pop(place, None)
                elif kind == "use":
                    rows.get(place, {}).update(last_step=found["last_used"], trained=found["frequency"])
                else:
                    row = config.form.decode(snapshot.columns(config, batch.slice(at, 1))[1])[0].tolist()
                    rows[place] = dict(file=entry["file"], weights=row[: config.weights], state=row[config.weights :])
    for table, _, _, files in snapshot.cold_tables(checkpoint.path, checkpoint.tables):
        config, wanted = configs[table], [key for key in keys if (table, key) not in rows]
        for key, packed in rocks.read_rows(files, wanted, config.form.nbytes).items():
            row = config.form.unpacked(packed[None])[0].tolist()
            file = next(iter(files.values())).name
            rows[table, key] = dict(file=file, weights=row[: config.weights], state=row[config.weights :])
    return rows


class Erasure:
    """The removal of the rows and texts of values from a model. The examples of `sources` have the values' crosses.

    Attributes:
      keys: int64[n], the keys of the values, and of the crosses that have them.
      rows: number of rows that were removed from files.
      not_reached: descriptions of what may still have the values.
    """

    def __init__(self, features: TrainedFeatures, values: Sequence[Value], sources: Sequence[Source]) -> None:
        self.rows, self.not_reached = 0, list[str]()
        self._texts = {each.value for each in values}
        self._done: dict[tuple[Any, ...], tuple[Path, list[Entry]]] = {}
        self._reached = set[str]()
        self.keys = np.unique(np.array([each.key for each in values], np.int64))
        spec, names = features[0], {each.feature for each in values}
        slots = {feature.slot for feature in spec.sparse if feature.name in names}
        crosses = [cross for cross in spec.cross if slots & {part.slot for part in spec.crossed(cross)}]
        if crosses:
            where = ", ".join(source.name for source in sources) or "none was found: set train_data"
            crossed = ", ".join(cross.name for cross in crosses)
            self.not_reached.append(f"rows of the crosses {crossed} of combinations that the data lacks ({where})")
            own = [keys for source in sources for keys in _crossed(features, crosses, self.keys, source)]
            self.keys = np.unique(np.concatenate([self.keys, *own]))

    def erase(self, path: Path) -> None:
        """Removes the keys from a checkpoint: writes files without them, then the manifest, then removes the others."""
        try:
            found = checkpoints.load_whole(str(path))
        except UserError as error:
            if is_loss(error):
                raise
            self.not_reached.append(f"a damaged checkpoint, which you can remove: {error}")
            return
        on_disk = [entry for entry in found.tables if entry["kind"] == snapshot.COLD]
        rows_files, model = snapshot.rows_files(found.tables), self.without_texts(found.model)
        tables = [*(self._without_keys(path, entry) for entry in rows_files), *self._rows_on_disk(path, found)]
        if (tables, model) != ([*rows_files, *on_disk], found.model):
            checkpoints.commit(dataclasses.replace(found, tables=tables, model=model))
        listed = {entry["file"] for entry in tables}
        for file in path.iterdir():
            if snapshot.FILE_NAME.fullmatch(file.name) and file.name not in listed:
                file.unlink()
        self._reached.add(str(path))

    def without_texts(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Returns saved features, or a record that has them, without the texts that are shown as typical."""
        if "features" in saved:
            return {**saved, "features": self.without_texts(saved["features"])}
        statistics = saved.get("statistics") or {}
        has = {name for name, each in statistics.items() if each.get(TYPICAL) in self._texts}
        left = {name: {k: v for k, v in statistics[name].items() if k != TYPICAL} for name in has}
        return {**saved, "statistics": statistics | left} if has else saved

    def files_left(self, root: Path) -> Iterator[Path]:
        """Yields the files of a directory that have the bytes of a key or of a value's text of at least 4 bytes.

        Also yields the files of rows on disk of which `erase` did not erase the checkpoint.
        """
        texts = [text for each in self._texts if len(text := each.encode()) >= _FEWEST_BYTES]
        sought = [*texts, *(key.tobytes() for key in self.keys)]
        pattern, overlap = re.compile(b"|".join(map(re.escape, sought))), max(map(len, sought)) - 1
        for name in root.files():
            if name.endswith(rocks.ROWS_FILE):  # Its keys are not whole.
                if str((root / name).parent) not in self._reached:
                    yield root / name
                continue
            before = b""
            for block in (root / name).blocks(_BLOCK_BYTES):
                if pattern.search(before + block):
                    yield root / name
                    break
                before = (before + block)[-overlap:]

    def _without_keys(self, path: Path, entry: Entry) -> Entry:
        """Returns the entry of a file without the keys; checkpoints that share a file also share the new one."""
        identity = path.parent.name, entry["file"], entry["crc32"], entry["snapshot"]
        return next(iter(self._shared(path, identity, functools.partial(self._written, path, entry))), entry)

    def _shared(self, path: Path, identity: tuple[Any, ...], write: Callable[[], list[Entry]]) -> list[Entry]:
        """Returns what `write` returned for the first checkpoint with these files, and shares the new files."""
        if identity not in self._done:
            self._done[identity] = path, write()
        where, new = self._done[identity]
        for each in new if where != path else ():
            (path / each["file"]).share(where / each["file"])
        return new

    def _rows_on_disk(self, path: Path, found: Checkpoint) -> list[Entry]:
        """Returns the entries of rows on disk without the keys; checkpoints with the same files share the new ones."""
        groups, entries = snapshot.cold_files(found.tables), list[Entry]()
        shown = rows_of(found, self.keys.tolist()) if groups else {}
        for place, own in groups.items():
            first = next(iter(own.values()))
            identity = tuple((name, each["crc32"]) for name, each in own.items() if name.endswith(rocks.ROWS_FILE))
            new = self._shared(path, identity, functools.partial(self._rewrite, path, place, own))
            gone = sum(row["file"] == first["file"] for row in shown.values())
            self.rows += gone
            changed = [{**first, "rows": 0, **each} for each in new]
            changed[:1] = [{**each, "rows": first["rows"] - gone} for each in changed[:1]]
            entries += changed or own.values()
        return entries

    def _rewrite(self, path: Path, place: str, own: dict[str, Entry]) -> list[Entry]:
        """Writes a database without the keys; returns the fields of its files that differ, [] if it has no key."""
        files = {name: path / entry["file"] for name, entry in own.items()}
        table, shard, _, shards = place.rsplit("-", 3)
        prefix = f"{table}-{shard}-of-{shards.partition('.')[0]}.{uuid.uuid4().hex[:8]}{snapshot.COLD_NAME}"
        with path.filled_locally() as directory:
            new = rocks.rewrite(files, self.keys, directory, prefix)
            return [checkpoints.describe_file(directory, file.name) for file in new]

    def _written(self, path: Path, entry: Entry) -> list[Entry]:
        """Writes a file without the keys, and returns [its entry]; returns [] if the file does not have them."""
        kind = entry["kind"]
        if kind == "counts":  # Each of its numbers is of many keys.
            return []
        gone = sum(int(np.isin(batch.column("key"), self.keys).sum()) for batch in snapshot.batches(path, entry))
        if not gone:
            return []
        self.rows += gone if kind in ("full", "delta") else 0
        name = f"{entry['file'].partition('.')[0]}.{uuid.uuid4().hex[:8]}.{kind}.arrow"
        with arrow_file(path, name, snapshot.schema(snapshot.read_config(path, entry), kind)) as file:
            for batch in snapshot.batches(path, entry):
                file.write(batch.filter(pa.array(~np.isin(batch.column("key"), self.keys))).columns)
            return [{**entry, "file": name, **file.finish()}]


def _crossed(
    features: TrainedFeatures, crosses: Sequence[CrossFeature], keys: np.ndarray, source: Source
) -> Iterator[np.ndarray]:
    """Yields the keys of crosses in the examples of a source that have one of `keys`."""
    buckets = hashing.buckets_of(*features)
    for table in map(source.read, range(len(source.group_rows))):
        for cross in crosses:
            columns = [(part.name, table[part.name].to_numpy()) for part in features[0].crossed(cross)]
            parts = [buckets[name].keys(column) if name in buckets else column for name, column in columns]
            has = np.any([np.isin(part, keys) for part in parts], axis=0)
            found = np.unique(hashing.cross_keys(cross, [part[has] for part in parts]))
            yield found[found != 0]
