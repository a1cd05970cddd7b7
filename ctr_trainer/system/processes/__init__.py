"""Processes, threads, cores and commands, with a time limit for each wait; and the import of TensorFlow."""
