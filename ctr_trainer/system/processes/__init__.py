"""Processes, threads, cores and commands, with a time limit for each wait; how TensorFlow is imported."""
