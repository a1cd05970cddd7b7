"""The worker's side of the embedding: its copies of rows, its lookups, and the merging of its changes."""
