"""Benchmarks of training jobs: their speed, their AUC, and their use of machines and networks."""
