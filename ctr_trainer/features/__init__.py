"""The feature spec, and how a column becomes the numbers and keys that a model takes."""
