"""The feature spec, and the conversion of columns to the numbers and keys that a model reads."""
