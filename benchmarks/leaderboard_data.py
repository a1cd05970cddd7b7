"""The data sets of `leaderboard.py`: BARS' files are checked, rewritten in the leaderboard's form and converted once.

The form is that of FuxiCTR's preprocessing. A value of a category that is missing, or that occurs in fewer than
`min_count` training rows, is replaced by the text `<OOV>`, one value per feature; features that share a slot share the
values that are kept. A bucket of a number that is as rare, and the bucket 0, for which FuxiCTR has no row either,
become missing.
"""

import dataclasses
import hashlib
import mmap
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import tqdm
from sides import ROOT, Parts

from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.dataset import FILE, open_dataset
from ctr_trainer.features import toml
from ctr_trainer.features.columns import SparseFeature
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.times import LOG_SQUARED, derived

CONFIGS = ROOT / "configs" / "leaderboard"
HISTORY_MODELS = ("din", "dien", "bst")
HELD_OUT = "random:0.9,0.1"
_OOV, _GROUP = "<OOV>", "group"
_BLOCK = 16 << 20


@dataclasses.dataclass(frozen=True)
class Data:
    """A data set of the leaderboard; the head of `configs/leaderboard/figures.toml` describes the attributes.

    `name` is also the name of the feature spec and of the flagfile, which `flags` follow. The column `group` of the
    feature spec is a copy of the column that the attribute names. `note` is a remaining difference from BARS' runs.
    """

    name: str
    title: str
    download: str
    md5_source: str
    figures: str
    md5: dict[str, str]
    rows: dict[str, int]
    models: dict[str, list[float]]
    means: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    flags: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    min_count: int = 1
    group: str = ""
    note: str = ""

    @property
    def flagfile(self) -> pathlib.Path:
        return CONFIGS / f"{self.name}.flags"

    def spec(self, model: str) -> FeatureSpec:
        """Returns the feature spec of a model; a model that does not read histories gets their means."""
        spec, pooled = FeatureSpec.load(CONFIGS / f"{self.name}.toml"), dict[str, Any](combiner="mean", keep="last")
        if model in HISTORY_MODELS:
            return spec
        sparse = (dataclasses.replace(f, **pooled) if f.combiner == "none" else f for f in spec.sparse)
        return dataclasses.replace(spec, sparse=tuple(sparse))


def figures() -> dict[str, dict[str, Any]]:
    """Returns the contents of figures.toml by data set."""
    return toml.read(CONFIGS / "figures.toml")


def load(name: str) -> Data:
    """Returns a data set from figures.toml."""
    return Data(name=name, **figures()[name])


def check(data: Data, path: pathlib.Path, any_files: bool) -> None:
    """Ends the program if a file of BARS is missing or has another MD5; `any_files` allows other MD5s."""
    for part, wanted in data.md5.items():
        file = path / f"{part}.csv"
        if not file.is_file():
            sys.exit(f"{file}: there is no such file; unpack {data.download} there, or name its directory: --path=DIR")
        if any_files:
            continue
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != wanted:
            sys.exit(
                f"{file}: has the MD5 {found}; the leaderboard's {data.title} has {wanted} ({data.md5_source}). "
                f"Download {data.download} again, or give --any_files for figures that are not the leaderboard's"
            )


def prepare(
    data: Data, path: pathlib.Path, work: pathlib.Path, model: str, choose_on_test: bool, any_files: bool
) -> Parts:
    """Returns the converted parts for a model; the first call converts them below `work`.

    If BARS has no validation file, a random tenth of the training file is held out for validation; with
    `choose_on_test`, the test file is used for it, as in BARS.
    """
    spec, own_valid = data.spec(model), "valid" in data.md5
    held_out = not own_valid and not choose_on_test
    output = work / ("histories" if spec.sequences else "pooled")
    learn = output / ("held_out" if held_out else "learn")
    for part in data.md5:
        target = learn if part == "train" else output / part
        if not any((place / FILE).is_file() for place in (target, target / "train")):
            source = work / "rewritten" / f"{part}.parquet"
            if not (source.parent / "done").is_file():
                _rewrite(data, spec, path, source.parent)
            print(f"{data.name}: converting {part}", file=sys.stderr, flush=True)
            split = HELD_OUT if held_out and part == "train" else None
            convert("parquet", str(source), target, spec, split=split)
        places = (target, target / "train", target / "test")
        rows = sum(open_dataset(place).rows for place in places if (place / FILE).is_file())
        if rows != data.rows[part] and not any_files:
            sys.exit(f"{part}.csv: {rows:,} rows were converted, and the leaderboard's has {data.rows[part]:,}")
    parts = Parts(learn, output / ("valid" if own_valid else "test"), output / "test")
    if held_out:
        parts = Parts(learn / "train", learn / "test", output / "test")
    if open_dataset(parts.train).spec != spec:
        sys.exit(f"{output} was converted with another {data.name}.toml: remove it, or give another --work")
    return parts


def _rewrite(data: Data, spec: FeatureSpec, path: pathlib.Path, output: pathlib.Path) -> None:
    """Writes all parts in the leaderboard's form."""
    output.mkdir(parents=True, exist_ok=True)
    kept = _kept(data, spec, path / "train.csv") if data.min_count > 1 else {}
    for part in data.md5:
        writer = None
        for table in _tables(data, spec, path / f"{part}.csv", f"writing {part}"):
            table = _in_form(table, spec, kept)
            writer = writer or pq.ParquetWriter(output / f"{part}.parquet", table.schema)
            writer.write_table(table)
        if writer is None:
            sys.exit(f"{path / part}.csv: has no rows")
        writer.close()
    (output / "done").touch()


def _tables(data: Data, spec: FeatureSpec, file: pathlib.Path, what: str) -> Iterator[pa.Table]:
    """Yields blocks of the columns of the spec as texts, null for empty cells."""
    columns = [spec.label.column, *(f.column for f in spec.sparse), *filter(None, [data.group])]
    form = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()),
        include_columns=list(dict.fromkeys(columns)),
        strings_can_be_null=True,
        null_values=[""],
    )
    with tqdm.tqdm(total=file.stat().st_size, unit="B", unit_scale=True, desc=what, disable=None) as bar:
        try:
            for batch in pa.csv.open_csv(file, pa.csv.ReadOptions(block_size=_BLOCK), convert_options=form):
                table = pa.Table.from_batches([batch])
                if "isrc" in columns:  # FuxiCTR keeps only the country, the first two letters.
                    country = pc.utf8_slice_codeunits(table["isrc"], 0, 2)
                    table = table.set_column(table.column_names.index("isrc"), "isrc", country)
                yield table.append_column(_GROUP, table[data.group]) if data.group else table
                bar.update(min(_BLOCK, bar.total - bar.n))
        except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
            sys.exit(f"{file}: is not a CSV file with the columns {', '.join(dict.fromkeys(columns))}: {error}")


def _counted(feature: SparseFeature) -> bool:
    """Returns whether rare values of a feature are replaced; those of times, buckets and numbers are not."""
    return feature.derive in (None, LOG_SQUARED) and not feature.is_bucketised and not feature.weight_separator


def _values(table: pa.Table, feature: SparseFeature) -> pa.Array:
    """Returns the values of a feature that are counted, null if missing; lists are concatenated."""
    texts = table[feature.column].combine_chunks()
    if feature.combiner:
        return pc.list_flatten(pc.split_pattern(texts, feature.separator))
    return derived(texts, feature.derive)[0] if feature.derive else texts


def _kept(data: Data, spec: FeatureSpec, train: pathlib.Path) -> dict[str, pa.Array]:
    """Returns, by slot, the values that occur at least `min_count` times in the training file."""
    features = [f for f in spec.sparse if _counted(f)]
    counts: dict[str, list[pa.Table]] = {f.name: [] for f in features}
    for table in _tables(data, spec, train, "counting"):
        for feature in features:
            found = counts[feature.name]
            found.append(pa.Table.from_struct_array(pc.value_counts(_values(table, feature))))
            if len(found) > 16:
                counts[feature.name] = [_added(found)]
    kept: dict[str, pa.Array] = {}
    for feature in features:
        all_of = _added(counts[feature.name])
        all_of = all_of.filter(pc.greater_equal(all_of["counts"], data.min_count))
        enough = all_of["values"].drop_null().combine_chunks()
        before = [kept[feature.slot]] if feature.slot in kept else []
        kept[feature.slot] = pc.unique(pa.concat_arrays([*before, enough]))
    return kept


def _added(tables: list[pa.Table]) -> pa.Table:
    """Returns the tables merged into one, with distinct `values` and their total `counts`."""
    sums = pa.concat_tables(tables).group_by("values").aggregate([("counts", "sum")])
    return sums.rename_columns(["values", "counts"])


def _in_form(table: pa.Table, spec: FeatureSpec, kept: dict[str, pa.Array]) -> pa.Table:
    """Returns the table with rare values replaced, and with numbers that have an embedding as `name:number`."""
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    for feature in spec.sparse:
        texts = columns[feature.column]
        if feature.weight_separator:
            columns[feature.column] = pc.binary_join_element_wise(feature.name, texts, feature.weight_separator)
        elif kept and _counted(feature):
            values = _values(table, feature)
            known = pc.is_in(values, kept[feature.slot].cast(values.type))
            if feature.derive:
                known = pc.and_(known, pc.fill_null(pc.not_equal(values, 0), False))
                columns[feature.column] = pc.if_else(known, texts, None)
            elif feature.combiner:
                lists = pc.split_pattern(texts, feature.separator)
                replaced = pc.if_else(pc.or_(known, pc.equal(values, "")), values, _OOV)
                lists = pa.ListArray.from_arrays(lists.offsets, replaced, mask=lists.is_null())
                columns[feature.column] = pc.binary_join(lists, feature.separator)
            else:
                columns[feature.column] = pc.if_else(known, texts, _OOV)
    return pa.table(columns)
