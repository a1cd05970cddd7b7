"""The `synthetic` format: demo data with Criteo's columns, for which the best possible AUC is known.

The labels are drawn from a known model of the row's values:

    P(label = 1) = sigmoid(bias + sum_f w[f, v_f] + sum_{f < g} <u[f, v_f], u[g, v_g]> + sum_j a_j z_j)

`v_f` is the value of categorical field f, which follows a power law; `w` are linear weights; `u` are latent vectors of
some of the fields (Rendle, "Factorization Machines", 2010); `z_j` is the standardized logarithm of number j. The
weights of a value with the expected count c are multiplied by c / (c + 5000), so that important values are frequent
enough to be learned. `oracle_auc` is the AUC of the true probabilities on the test rows, which a model can exceed only
by chance.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tqdm

from ctr_trainer.data.conversion.delimited import CRITEO_DENSE as DENSE
from ctr_trainer.data.conversion.delimited import CRITEO_SPARSE as SPARSE
from ctr_trainer.data.conversion.measurement import auc
from ctr_trainer.data.conversion.writer import DatasetWriter
from ctr_trainer.features.columns import SparseFeature
from ctr_trainer.features.hashing import keys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.paths import Path
from ctr_trainer.system.messages.errors import UserError

CTR = 0.25
SAMPLE = "sample.tsv"  # The file is next to the parts.
SAMPLE_ROWS = 1000
_ROWS = 2_000_000  # Number of rows for which FIELDS gives the vocabulary sizes. Fewer rows have smaller vocabularies.
_CHUNK = 200_000
_SHRINK = 5000.0  # Expected count at which a value's weights are half of those of a very frequent value.
_LATENT = 4
_SCALES = dict(linear=1.15, second=0.65, dense=0.45)  # The standard deviation of each part of the logit.


@dataclasses.dataclass(frozen=True)
class Field:
    """A categorical field. The probability of the value of rank r, from 0, is about proportional to (r+1)^-exponent."""

    vocabulary: int
    exponent: float
    missing: float = 0.0
    latent: bool = False


FIELDS = (
    Field(1_400, 1.1), Field(550, 1.1), Field(8_000_000, 0.4, 0.03),
    Field(20_000, 0.9, 0.03), Field(300, 1.2), Field(24, 0.9, 0.12, latent=True),
    Field(12_000, 1.0), Field(600, 1.1), Field(3, 0.5, latent=True),
    Field(15_000, 0.9), Field(5_000, 1.0), Field(6_000_000, 0.4, 0.03),
    Field(3_000, 1.0), Field(26, 0.8, latent=True), Field(11_000, 1.0),
    Field(50_000, 0.9, 0.03), Field(10, 0.7, latent=True), Field(4_500, 1.0),
    Field(2_000, 1.0, 0.44), Field(4, 0.6, 0.44, latent=True), Field(30_000, 0.9, 0.03),
    Field(17, 0.8, 0.76), Field(15, 0.9, latent=True), Field(50_000, 0.9, 0.03),
    Field(90, 1.0, 0.44, latent=True), Field(10_000, 0.9, 0.44),
)  # fmt: skip
_MISSING_DENSE = (0.45, 0.0, 0.21, 0.22, 0.03, 0.22, 0.04, 0.0, 0.04, 0.45, 0.04, 0.76, 0.22)


def write(
    make_writer: Callable[[str], DatasetWriter],
    sample_file: Path,
    spec: FeatureSpec,
    rows: int,
    seed: int,
    bar: tqdm.tqdm,
) -> tuple[dict[str, DatasetWriter], dict[str, Any]]:
    """Generates the data, a function of the numbers of rows and the seed; there are rows // 10 test rows in addition.

    `make_writer` makes the DatasetWriter of the part `train` or `test`. `sample_file` gets the first test rows in
    Criteo's raw format. The features of the spec are among I1..I13 (dense) and C1..C26 (sparse, single-valued). Returns
    (writers by part, extra: `oracle_auc` and `seed`).
    """
    _check(spec, rows)
    total = rows + rows // 10
    rng = np.random.default_rng(seed)
    logits = np.zeros(total, np.float32)
    ranks = _categorical(rng, total, rows, logits)
    numbers = _dense(rng, total, logits)
    logits += _bias(logits)
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    labels = (rng.random(total) < probabilities).astype(np.float32)
    extra = dict(oracle_auc=auc(labels[rows:], probabilities[rows:]), seed=seed)
    sample = slice(rows, rows + min(SAMPLE_ROWS, total - rows))
    texts = [_text(field, drawn[sample]).to_pylist() for field, drawn in enumerate(ranks)]
    key_columns = {f.name: _keys(f, ranks) for f in spec.sparse}
    writers = {}
    for part, start, stop in (("train", 0, rows), ("test", rows, total)):
        writers[part] = make_writer(part)
        for first in range(start, stop, _CHUNK):
            chunk = slice(first, min(first + _CHUNK, stop))
            columns = {f.name: numbers[DENSE.index(f.column)][chunk] for f in spec.dense}
            columns |= {name: values[chunk] for name, values in key_columns.items()}
            writers[part].write(pa.table(columns | {"label": labels[chunk]}))
            bar.update(chunk.stop - chunk.start)
    _write_sample(sample_file, labels[sample], [n[sample] for n in numbers], texts)
    return writers, extra


def _check(spec: FeatureSpec, rows: int) -> None:
    if rows < 1000:
        raise UserError(f"format synthetic: rows={rows}; expected at least 1000")
    multi_valued, labels = spec.bags + spec.sequences, [label.column for label in spec.labels]
    if multi_valued or spec.bucketised or spec.ids or spec.weight or labels != ["label"]:
        raise UserError(
            f"format synthetic generates label, I1..I13 and C1..C26; feature spec {spec.name!r} has bags, sequences, "
            "buckets, ids, weights or another label; use configs/features/demo.toml or a similar spec"
        )
    for kind, features, columns in (("dense", spec.dense, DENSE), ("sparse", spec.sparse, SPARSE)):
        for f in features:
            if f.column not in columns:
                raise UserError(
                    f"format synthetic: no column {f.column!r} for {kind} feature {f.name!r} of feature spec "
                    f"{spec.name!r}; there are {columns[0]}..{columns[-1]}"
                )


def _categorical(rng: np.random.Generator, total: int, rows: int, logits: np.ndarray) -> list[np.ndarray]:
    """Draws int32[total] ranks of values, -1 if missing, for each field, and adds their part of the logit."""
    ranks = []
    linear = np.zeros(total, np.float32)
    latent_sum = np.zeros((total, _LATENT), np.float32)
    latent_squares = np.zeros(total, np.float32)
    for field in FIELDS:
        size = min(field.vocabulary, max(100, int(rows / _ROWS * field.vocabulary)))
        drawn = _draw(rng, total, size, field.exponent)
        drawn[rng.random(total, np.float32) < field.missing] = -1
        ranks.append(drawn)
        counts = rows * _probabilities(size, field.exponent)
        shrink = np.append(counts / (counts + _SHRINK), 1)  # The last one is for missing values, whose rank is -1.
        weights = (rng.standard_normal(size + 1) * shrink).astype(np.float32)
        linear += weights[drawn]
        if field.latent:
            vectors = (rng.standard_normal((size + 1, _LATENT)) * shrink[:, None]).astype(np.float32)
            u = vectors[drawn]
            latent_sum += u
            latent_squares += np.einsum("ij,ij->i", u, u)
    second = (np.einsum("ij,ij->i", latent_sum, latent_sum) - latent_squares) / 2
    logits += _scaled(linear, "linear") + _scaled(second, "second")
    return ranks


def _dense(rng: np.random.Generator, total: int, logits: np.ndarray) -> list[np.ndarray]:
    """Draws heavy-tailed whole numbers, float32[total], for 13 columns, and adds their part of the logit."""
    columns, part = [], np.zeros(total, np.float32)
    for at, missing in enumerate(_MISSING_DENSE):
        spread = 0.8 + 0.1 * at
        z = rng.standard_normal(total, np.float32)
        # Like Criteo's I2, one column begins at -1.
        values = np.floor(np.exp(np.float32(spread) * z + np.float32(1 + 0.3 * at))) - (1 if at == 1 else 0)
        values[rng.random(total, np.float32) < missing] = np.nan
        logs = np.sign(values) * np.log1p(np.abs(values))
        weight = np.float32(rng.standard_normal())
        part += np.nan_to_num(weight * (logs - np.nanmean(logs)) / np.nanstd(logs))
        columns.append(values)
    logits += _scaled(part, "dense")
    return columns


def _scaled(part: np.ndarray, name: str) -> np.ndarray:
    return (part - part.mean()) * np.float32(_SCALES[name] / part.std())


def _bias(logits: np.ndarray) -> np.float32:
    """Returns the bias that makes the mean probability `CTR`, by bisection."""
    some = logits[:200_000].astype(np.float64)
    low, high = -20.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if np.mean(1 / (1 + np.exp(-some - middle))) < CTR else (low, middle)
    return np.float32(low)


def _draw(rng: np.random.Generator, total: int, size: int, exponent: float) -> np.ndarray:
    """Draws int32[total] ranks: the floor of a bounded Pareto variable, by inverse transform sampling."""
    u = rng.random(total, np.float32).astype(np.float64)
    if exponent == 1:
        x = np.exp(u * np.log(size + 1))
    else:
        x = (u * ((size + 1) ** (1 - exponent) - 1) + 1) ** (1 / (1 - exponent))
    return np.clip(x.astype(np.int32) - 1, 0, size - 1)


def _probabilities(size: int, exponent: float) -> np.ndarray:
    """Returns float64[size], the probabilities of the ranks that `_draw` returns."""
    edges = np.arange(1, size + 2, dtype=np.float64)
    mass = np.log(edges) if exponent == 1 else edges ** (1 - exponent)
    return np.diff(mass) / (mass[-1] - mass[0])


def _text(field: int, ranks: np.ndarray) -> pa.StringArray:
    """Returns 8 hex digits for each rank, different for different ranks; null for the rank -1."""
    mixed = (ranks.astype(np.uint32) + np.uint32(field * 0x9E3779B1 & 0xFFFFFFFF)) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0xC2B2AE35)  # Each step is invertible, so values differ.
    digits = mixed.astype(">u4").tobytes().hex().encode()
    offsets = np.arange(0, 8 * len(ranks) + 8, 8, dtype=np.int32)
    array = pa.StringArray.from_buffers(len(ranks), pa.py_buffer(offsets), pa.py_buffer(digits))
    return pc.if_else(pa.array(ranks >= 0), array, pa.scalar(None, pa.string()))


def _keys(feature: SparseFeature, ranks: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the keys, int64[n], by the ranks of all fields. Each value that occurs is hashed once."""
    field = SPARSE.index(feature.column)
    drawn = pa.array(ranks[field]).dictionary_encode()
    texts = _text(field, drawn.dictionary.to_numpy())
    return keys(feature.slot, pa.DictionaryArray.from_arrays(drawn.indices, texts), feature.missing_has_row)


def _write_sample(path: Path, labels: np.ndarray, numbers: list[np.ndarray], texts: list[list[str | None]]) -> None:
    """Writes rows in the format of Criteo's raw TSV files."""
    columns = [[f"{int(v)}" for v in labels]]
    columns += [["" if np.isnan(v) else f"{int(v)}" for v in n] for n in numbers]
    columns += [["" if v is None else v for v in of_field] for of_field in texts]
    path.write_text("".join("\t".join(row) + "\n" for row in zip(*columns, strict=True)))
