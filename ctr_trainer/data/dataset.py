"""A converted data set: Parquet files and the `_dataset.json` that says what is in them."""

import dataclasses
import pathlib

from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.files import durable_file
from ctr_trainer.messages.errors import UserError

FILE = "_dataset.json"
_VERSION = 1
_HINT = "; run `convert` first, or name a --feature_spec to read Parquet or TFRecords made elsewhere as they are"


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """What `_dataset.json` says.

    Attributes:
      path: the directory; not in the file.
      spec: FeatureSpec that it was converted with.
      rows: examples in it.
      bad_rows: rows left out of the whole conversion, all parts of a split together.
      label_mean: share of positive labels; of several, the first one's; None where the data have no labels.
      distinct: by sparse feature that is not bucketised, distinct keys.
      statistics: by dense feature, `mean`, `std`, `min`, `max` and `count` of the training part's present values; by
        feature with quantiles, the `boundaries` fitted to them.
      files: of each Parquet file, `name`, `rows` and `row_groups`, the rows of each row group.
      extra: what the format knows besides, as the synthetic data's `oracle_auc`.
      label_means: by label name, share of positive ones.
      labelled: whether the data have labels; as the spec says.
    """

    path: str
    spec: FeatureSpec
    rows: int
    bad_rows: int
    label_mean: float | None
    distinct: dict[str, int]
    statistics: dict[str, dict[str, float]]
    files: tuple[dict, ...]
    extra: dict
    label_means: dict[str, float] = dataclasses.field(default_factory=dict)
    labelled: bool = True

    def write(self):
        """Writes the file by rename: a directory that has it is finished."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("path", "spec")}
        values = {"version": _VERSION, "spec": self.spec.to_dict(), **values}
        durable_file.write_json(pathlib.Path(self.path) / FILE, values)


def open_dataset(path):
    """-> DatasetInfo of a directory that `convert` made.

    Raises:
      UserError: no such directory, or an unfinished one, or of another version.
    """
    file = pathlib.Path(path) / FILE
    if not file.is_file():
        why = f"no conversion finished there (no {FILE})" if file.parent.is_dir() else "no such directory"
        parts = sorted(p.parent.name for p in file.parent.glob(f"*/{FILE}"))
        hint = f"; it has the parts {', '.join(parts)}: name one" if parts else _HINT
        raise UserError(f"data set {path}: {why}{hint}")
    try:
        values = durable_file.read_json(file, "convert the data again")
        if values.pop("version") != _VERSION:
            raise UserError(f"{file}: written by another version of ctr_trainer; convert the data again")
        spec = FeatureSpec.from_dict(values.pop("spec"), f"{file}: spec")
        spec = spec if values.get("labelled", True) else spec.without_labels()
        return DatasetInfo(path=str(path), spec=spec, **{**values, "files": tuple(values["files"])})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: not a data set's description ({error}); convert the data again") from error
