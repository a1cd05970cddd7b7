"""Data sets: readers of source files, conversion, and the batches that a worker reads."""
