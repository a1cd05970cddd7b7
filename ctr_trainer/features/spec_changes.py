"""How a feature spec differs from the spec of a trained model, or from another spec."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ctr_trainer.features.spec import FeatureSpec

_NAMED = 8  # The most differences that a message lists.


def contradictions(known: FeatureSpec, given: FeatureSpec) -> str:
    """Returns the differences of the features and of several labels as text, "" if there are none.

    A model reads features of other dims, columns or transforms wrongly, and those in another order too.
    """
    found = _of_named((*known.dense, *known.sparse), (*given.dense, *given.sparse))
    if not found and (known.dense, known.sparse) != (given.dense, given.sparse):
        found = ["the features are in another order"]
    names, own = [label.name for label in known.labels], [label.name for label in given.labels]
    if len(names) != len(own) or (len(names) > 1 and names != own):
        found.append(f"the labels {', '.join(own)}, not {', '.join(names)}")
    more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return "; ".join(found[:_NAMED]) + more


def novelties(known: FeatureSpec, given: FeatureSpec) -> str:
    """Returns the differences that a model allows as text: labels, weight, ids, form of the text and limits."""
    found = []
    if given.labelled:
        for label, own in zip(known.labels, given.labels, strict=False):
            found += [f"label: {each}" for each in _of_parts(label, own)]
        found += _of_part("weight", known.weight, given.weight)
    found += _of_part("ids", ", ".join(known.ids), ", ".join(given.ids))
    found += [f"csv: {each}" for each in _of_parts(known.csv, given.csv)]
    return "; ".join(found + ["limits"] * (known.limits != given.limits))


def _of_named(known: Sequence[Any], given: Sequence[Any]) -> list[str]:
    """Returns the differences between features, which are compared by their names."""
    there, found = {each.name: each for each in known}, []
    for own in given:
        feature = there.pop(own.name, None)
        if feature is None:
            found.append(f"{own.name!r} is new")
        elif type(feature) is not type(own):
            found.append(f"{own.name!r} is {type(own).__name__}, not {type(feature).__name__}")
        else:
            found += [f"{own.name!r}: {each}" for each in _of_parts(feature, own)]
    return found + [f"{name!r} is missing" for name in there]


def _of_parts(known: Any, given: Any) -> list[str]:
    """Returns the differences between the fields of two dataclass instances of one type."""
    names = (field.name for field in dataclasses.fields(known))
    return [text for name in names for text in _of_part(name, getattr(known, name), getattr(given, name))]


def _of_part(name: str, known: Any, given: Any) -> list[str]:
    return [] if known == given else [f"{name} {given}, not {known}"]
