"""The raw values that a published model reads: the features of a request."""

import dataclasses
from collections.abc import Collection

from tensorflow.core.protobuf import saved_model_pb2

from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.local_path import LocalPath

NUMBER, TEXT, TEXTS, WEIGHTED = "number", "text", "texts", "weighted texts"
_EXPECTED = {
    NUMBER: "a number, or null for a missing one",
    TEXT: 'a text, an integer, or null for a missing one; or {"b64": ...} for bytes',
    TEXTS: 'a list of texts or integers, as ["a", "b"], or null for none',
    WEIGHTED: 'a list of texts with weights, as ["a{0}0.5", "b{0}2"], or null for none',
}


@dataclasses.dataclass(frozen=True)
class RawFeature:
    """A feature of a request.

    Attributes:
      kind: `NUMBER`, `TEXT`, `TEXTS` or `WEIGHTED`.
      separator: the text between a value and its weight; None without weights.
    """

    name: str
    kind: str
    separator: str | None = None

    @property
    def expected(self) -> str:
        """A description of the allowed values."""
        return _EXPECTED[self.kind].replace("{0}", self.separator or "")

    @property
    def is_list(self) -> bool:
        return self.kind in (TEXTS, WEIGHTED)


@dataclasses.dataclass(frozen=True)
class RawInputs:
    """The features of a request.

    Attributes:
      features: the features that the model reads. A request must contain each of them.
      ignored: names of the spec's features that this model does not read. A request may contain them.
    """

    features: tuple[RawFeature, ...]
    ignored: frozenset[str]

    @classmethod
    def of(cls, spec: FeatureSpec, names: Collection[str]) -> "RawInputs":
        """Returns the inputs of a model that reads the features with these names."""
        features = [RawFeature(f.name, NUMBER) for f in spec.dense]
        for f in spec.sparse:
            kind = NUMBER if f.is_bucketised else TEXT
            if f.combiner is not None:
                kind = TEXTS if f.weight_separator is None else WEIGHTED
            features.append(RawFeature(f.name, kind, f.weight_separator))
        read = tuple(feature for feature in features if feature.name in names)
        return cls(read, frozenset(f.name for f in features if f.name not in names))

    def by_name(self) -> dict[str, str]:
        """Returns a dict of feature -> what its values are; "" for an ignored feature."""
        weights = {f.name: f" with {f.separator!r}" if f.separator else "" for f in self.features}
        return {**dict.fromkeys(sorted(self.ignored), ""), **{f.name: f.kind + weights[f.name] for f in self.features}}


def inputs_of(tower: str, spec: FeatureSpec) -> dict[str, str]:
    """Returns `Record.inputs` of an exported tower."""
    found = saved_model_pb2.SavedModel.FromString((LocalPath(tower) / "saved_model.pb").read_bytes())
    names = {name for each in found.meta_graphs[0].signature_def.values() for name in each.inputs}
    return RawInputs.of(spec, names).by_name()
