"""Data sets: readers of files, conversion, and the batches that a worker reads of them."""
