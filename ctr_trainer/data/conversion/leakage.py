"""Finds columns that leak the label (target leakage), such as a column that is filled only after a click."""

import contextlib
import logging

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data.blocks import label_columns
from ctr_trainer.data.conversion.measurement import Labels, added, auc, buckets
from ctr_trainer.data.source import Source
from ctr_trainer.features.columns import DenseFeature, SparseFeature
from ctr_trainer.features.hashing import keys

_ROWS = 100_000  # Number of rows to examine: enough to detect a leak, and read in a second.
_AUC = 0.99
_FEWEST = 20  # Groups with fewer rows are not significant.
_CHANCE = 1e-9  # A pure group is significant if it occurs by chance with a lower probability.
_PURE = 0.99
_SHARE = 0.01  # Groups with a smaller share of their label's rows are ignored.
_BINS = 256
_STATES = 50  # With more numbers than this, a column has amounts. A capital gain of 15,024 has one label in Adult.
_log = logging.getLogger(__name__)


def warn_of_leaks(data: Source) -> None:
    """Logs a warning for each feature of a source that leaks a label. Samples row groups from the whole data."""
    with contextlib.closing(data):
        spec, groups, rows = data.spec, len(data.group_rows), sum(data.group_rows)
        if not spec.labelled or not rows:
            return
        wanted = min(groups, -(-_ROWS * groups // rows))
        features: tuple[DenseFeature | SparseFeature, ...] = (*spec.dense, *spec.sparse)
        names = [*label_columns(spec), *(feature.name for feature in features)]  # The types of ids may differ.
        table = pa.concat_tables(data.read(number * groups // wanted).select(names) for number in range(wanted))
    for column, label in label_columns(spec).items():
        labels = table[column].to_numpy() > 0.5
        of = f" for the label {label.name!r}" if spec.other_labels else ""
        for feature in features:
            if why := _of_encoded(table[feature.name].combine_chunks(), feature, labels):
                _log.warning(
                    "%s: column %r %s%s. If its value is known only after the label, remove feature %r from the "
                    "feature spec, because a model with this feature is useless in serving; if it is another outcome, "
                    "it can be a second label",
                    *(data.name, feature.column, why, of, feature.name),
                )


def _of_encoded(column: pa.Array, feature: DenseFeature | SparseFeature, labels: Labels) -> str:
    if pa.types.is_list(column.type):
        if isinstance(feature, SparseFeature) and feature.weight_separator is not None:
            return evidence(None, pc.list_value_length(column).to_numpy() > 0, labels)
        return evidence_of_lists(pc.list_parent_indices(column).to_numpy(), column.flatten(), labels)
    values = column.to_numpy()
    if values.dtype.kind == "f":
        return evidence(values, ~np.isnan(values), labels)
    missing = keys(feature.slot, pa.array([""]))[0] if isinstance(feature, SparseFeature) else 0
    return evidence(values, (values != 0) & (values != missing), labels)


def evidence(values: np.ndarray | None, present: Labels, labels: Labels) -> str:
    """Returns the evidence that a column leaks the labels, or ""; docs/inputs.md lists the criteria.

    `values` are amounts if float, categories if int64; None examines the presence of values only.
    """
    for rows, what in ((present, "is filled"), (~present, "is missing")):
        if said := _pure(rows, labels):
            return f"{what} {said}"
    if values is None:
        return ""
    if values.dtype.kind == "f":
        codes = buckets(np.where(present, values, np.nan), _BINS)
        alone = _auc(labels[present], values[present])
    else:
        codes, alone = np.unique(np.where(present, values, 0), return_inverse=True)[1], 0.5
    best = max(alone, 1 - alone, _auc(labels, added(labels, None, codes)))
    if best > _AUC:
        return f"alone has an AUC of {best:.4f}"
    found, codes, counts = np.unique(values[present], return_inverse=True, return_counts=True)
    amounts = values.dtype.kind == "f" and len(found) > _STATES
    if not amounts and (said := _of_values(found, codes, labels[present], labels)):
        return said
    other = present & (values != found[counts.argmax()]) if len(found) else ~present
    said = _pure(other, labels)
    return f"has another value than its most frequent one {said}" if said else ""


def evidence_of_lists(owner: npt.NDArray[np.int64], values: pa.Array, labels: Labels) -> str:
    """Returns the `evidence` of a column of lists with these `values`; `owner` is the row of each of them."""
    rows = len(labels)
    if said := evidence(None, np.bincount(owner, minlength=rows) > 0, labels):
        return said
    found = values.dictionary_encode()
    pairs = np.unique(found.indices.to_numpy().astype(np.int64) * rows + owner)  # A repeated value counts once.
    return _of_values(np.arange(len(found.dictionary)), pairs // rows, labels[pairs % rows], labels)


def _of_values(found: np.ndarray, codes: npt.NDArray[np.int64], of_codes: Labels, labels: Labels) -> str:
    """Describes the most frequent value of those `found` that nearly always goes with one label; "" for none."""
    # A value must differ from all other values: at 17 nobody has an income above 50,000 in Adult, but at 18 or 19
    # hardly anybody has one, either. Therefore the chance of a pure value is that of the purest of the other values.
    counts = np.bincount(codes, minlength=len(found))
    positive = np.bincount(codes, of_codes, minlength=len(found))
    for right, expected, name in ((positive, labels.mean(), 1), (counts - positive, 1 - labels.mean(), 0)):
        shares, enough = right / np.maximum(counts, 1), counts >= _FEWEST
        pure = enough & (shares >= 1 - (1 - _PURE) * (1 - expected))
        likely = max(expected, shares[enough & ~pure].max(initial=0))
        pure &= right >= _SHARE * expected * len(labels)
        if not 0 < likely < 1 or not pure.any():
            continue
        at = int(np.argmax(np.where(pure, counts, 0)))
        if counts[at] * np.log(likely) < np.log(_CHANCE / len(found)):
            value = f"the value {found[at]:g}" if found.dtype.kind == "f" else f"a value ({len(found):,} are distinct)"
            share = f"{int(right[at]):,} of {counts[at]:,} rows; {expected:.2%} of all rows are"
            return f"has {value} that goes only with the label {name} ({share})"
    return ""


def _pure(rows: Labels, labels: Labels) -> str:
    """Describes a group of rows if nearly all its labels are equal, unlike the labels of all rows; otherwise ""."""
    count, others = int(rows.sum()), int((~rows).sum())
    if min(count, others) < _FEWEST:
        return ""
    mean, base = float(labels[rows].mean()), float(labels.mean())
    for share, expected, name in ((mean, base, 1), (1 - mean, 1 - base, 0)):
        # If a label is rare overall, nearly every group is nearly pure. It must be much rarer in the group.
        pure = share >= 1 - (1 - _PURE) * (1 - expected)
        if pure and 0 < expected < 1 and count * np.log(expected) < np.log(_CHANCE):
            if count * share >= _SHARE * expected * len(labels):
                return f"only where the label is {name} ({share:.2%} of {count:,} rows; {expected:.2%} of all rows are)"
    return ""


def _auc(labels: Labels, scores: np.ndarray) -> float:
    """Returns the AUC of the scores, or 0.5 if one of the labels is too rare."""
    return auc(labels, scores) if min(labels.sum(), (~labels).sum()) >= _FEWEST else 0.5
