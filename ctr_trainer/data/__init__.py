"""Data sets, and the batches that a worker reads from them."""
