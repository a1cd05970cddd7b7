"""Embedding rows, in rooms of which each knows those before: memory, index, table, snapshot, store, service, worker."""
