"""Embedding rows, from the memory that they lie in to what a worker keeps of them."""
