"""The names of a converted data set's columns, beside those of the features."""

# These prefixes are kept from features' names, which may be those of a source's columns.
ID_PREFIX = "id:"
LABEL = "label"
LABEL_PREFIX = "label:"
TIME = "time:"
WEIGHT = "weight"
WEIGHTS_PREFIX = "weights:"


def label_columns(spec):
    """-> by column name, the Labels of a spec, in its order."""
    if len(spec.labels) == 1:
        return {LABEL: spec.label}
    return {LABEL_PREFIX + label.name: label for label in spec.labels}
