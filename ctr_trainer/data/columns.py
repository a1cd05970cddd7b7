"""The names of a converted data set's columns, beside those of the features."""

# These prefixes are kept from features' names, which may be those of a source's columns.
ID_PREFIX = "id:"
LABEL = "label"
LABEL_PREFIX = "label:"
TIME = "time:"
WEIGHT = "weight"
WEIGHTS_PREFIX = "weights:"
LABELS_ARE_NEEDED = "; `predict` needs no label, and `convert --unlabelled` makes data for it without any"


def label_columns(spec):
    """-> by column name, the Labels of a spec, in its order; none of an unlabelled one."""
    if not spec.labelled:
        return {}
    if len(spec.labels) == 1:
        return {LABEL: spec.label}
    return {LABEL_PREFIX + label.name: label for label in spec.labels}
