"""Hyperparameter search with Optuna: trials of different settings on the same converted data."""
