"""Benchmarks of training jobs: their speed, their AUC, and how much of a machine or network they need."""
