"""The commands, one per module: their flags, examples and functions."""
