"""How a feature spec differs from the spec of a model or of data."""

from collections.abc import Mapping
from typing import Any

from ctr_trainer.features.spec import FeatureSpec

_NAMED = 8  # The most differences that a message lists.


def contradictions(known: FeatureSpec, given: FeatureSpec) -> str:
    """Returns how the features, or several labels, of `given` differ, as text; "" if they do not."""
    there, own = (
        {f.name: vars(f) for f in spec.dense}
        | {f.name: vars(f) for f in spec.embedded}
        | {f"{x.section} {x.name}": {**vars(x), "file": "", "sha256": x.sha256[:12]} for x in spec.files}
        for spec in (known, given)
    )
    found = [f"{name!r} is missing" for name in there if name not in own]
    for name, values in own.items():
        found += _differing(there[name], values, f"{name!r}: ") if name in there else [f"{name!r} is new"]
    if not found and [*there] != [*own]:
        found = ["the features are in another order"]
    before, labels = ([label.name for label in spec.labels] for spec in (known, given))
    if len(before) != len(labels) or (len(before) > 1 and before != labels):
        found.append(f"the labels {', '.join(labels)}, not {', '.join(before)}")
    more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return "; ".join(found[:_NAMED]) + more


def novelties(known: FeatureSpec, given: FeatureSpec) -> str:
    """Returns the other differences as text, which a model allows: the label, weight, ids, text format and limits."""
    parts: list[dict[str, Any]] = []
    for spec in (known, given):
        labels = {f"label {each}": [vars(label)[each] for label in spec.labels] for each in vars(spec.label)}
        of_labelled = {**labels, "weight": spec.weight} if given.labelled else {}
        parts.append({**of_labelled, "ids": [*spec.ids], **vars(spec.csv), "limits": spec.limits})
    return "; ".join(_differing(parts[0], parts[1]))


def _differing(known: Mapping[str, Any], given: Mapping[str, Any], prefix: str = "") -> list[str]:
    names = [name for name in {**given, **known} if given.get(name) != known.get(name)]
    return [f"{prefix}{name} {given.get(name)}, not {known.get(name)}" for name in names]
