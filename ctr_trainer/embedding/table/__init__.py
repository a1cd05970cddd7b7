"""A table of rows in one process: the creation, training, admission and eviction of rows."""
