"""The feature spec, and the conversion of source columns to the numbers and keys that a model reads."""
