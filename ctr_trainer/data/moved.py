"""What has moved between two sources: missing values, label rates, the distribution of each feature, and new keys."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ctr_trainer.data.bins import Bins, values_of
from ctr_trainer.data.blocks import label_columns
from ctr_trainer.data.source import Source
from ctr_trainer.features.spec_changes import contradictions
from ctr_trainer.system.messages.errors import UserError

_ROWS = 200_000  # Rows of each source that are compared.
_BINS = 20
# Smaller changes have no sentence: a PSI below 0.1 is usually called stable.
_PSI, _MISSING, _NEW = 0.1, 0.01, 0.05


def moved(source: Source, other: Source, new_keys: Mapping[str, Mapping[str, float | None]]) -> dict[str, Any]:
    """Compares up to 200,000 random rows of a source with those of another one.

        PSI = sum_b (p_b - q_b) ln(p_b / q_b)    the population stability index; p, q: the shares of both in bin b

    The 20 `Bins` are those of `other`; in bags and sequences, each value counts. `new_keys` are of `NewKeys.report`.
    The results for JSON have the most moved of the `features` first, and `sentences` of changes that are no noise.
    Raises UserError if the sources have different features.
    """
    if differing := contradictions(other.spec, source.spec):
        raise UserError(f"against={other.name}: its features are not those of {source.name}: {differing}")
    now, before, labels = source.sample(_ROWS), other.sample(_ROWS), {}
    said: list[tuple[float, str]] = []
    noise = 1 / len(now) + 1 / len(before)
    for column, label in label_columns(other.spec).items():
        rate, rate_before = (float(np.mean(table[column].to_numpy())) for table in (now, before))
        labels[label.name] = {"rate": rate, "rate_before": rate_before}
        said.append((math.inf, f"{rate:.2%} of the labels `{label.name}` are positive, {rate_before:.2%} before"))
    features = []
    for f in (*source.spec.features, *source.spec.cross):
        figures: dict[str, Any] = {"feature": f.name}
        changes: list[tuple[float, float, str]] = []  # The size of a change, the least size to speak of, and the text.
        if f not in source.spec.cross:
            columns = [values_of(table, source.spec, f.name) for table in (now, before)]
            bins = Bins(columns[1], _BINS, _BINS)
            counts = np.stack([np.bincount(bins.numbers(each), minlength=len(bins.names)) for each in columns])
            psi, (missing, share) = _psi(counts), (counts[:, -1] / counts.sum(axis=1)).tolist()
            figures |= {"psi": psi, "missing": missing, "missing_before": share}
            text = f"`{f.name}` has another distribution: its PSI is {psi:.2f}"
            changes.append((psi, _PSI + _BINS * noise, text))
            least = max(_MISSING, 4 * math.sqrt(share * (1 - share) * noise))
            text = f"{missing:.1%} of `{f.name}` are missing, {share:.1%} before"
            changes.append((abs(missing - share), least, text))
        if f.name in new_keys:
            new, usual = new_keys[f.name]["share"] or 0.0, new_keys[f.name]["in_training"] or 0.0
            figures |= {"new_keys": new, "new_keys_in_training": usual}
            text = f"{new:.0%} of `{f.name}` were never seen in training, where {usual:.1%} were new"
            changes.append((new - usual, _NEW, text))
        features.append((max((size for size, _, _ in changes), default=0.0), figures))
        said += [(size, text) for size, least, text in changes if size >= least]
    ordered = [figures for _, figures in sorted(features, key=lambda each: -each[0])]
    sentences = [text for _, text in sorted(said, key=lambda each: -each[0])]
    return {"labels": labels, "features": ordered, "sentences": sentences}


def _psi(counts: np.ndarray) -> float:
    shares = counts + 0.5  # Half a value more in each bin, so that an empty one has a logarithm.
    now, before = shares / shares.sum(axis=1, keepdims=True)
    return float(((now - before) * np.log(now / before)).sum())
