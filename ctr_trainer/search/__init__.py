"""Search: trials of other settings on the same converted data, with Optuna."""
