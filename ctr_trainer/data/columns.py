"""The names of a converted data set's columns that are no features."""

# No feature's name may begin with these prefixes; features may be named like columns of the source.
ID_PREFIX = "id:"
LABEL = "label"
LABEL_PREFIX = "label:"
TIME = "time:"
WEIGHT = "weight"
WEIGHTS_PREFIX = "weights:"
LABELS_ARE_NEEDED = "; `predict` needs no label, and `convert --unlabelled` makes data for it without any"


def label_columns(spec):
    """-> dict of column name -> Label, in the spec's order; {} for an unlabelled spec."""
    if not spec.labelled:
        return {}
    if len(spec.labels) == 1:
        return {LABEL: spec.label}
    return {LABEL_PREFIX + label.name: label for label in spec.labels}
