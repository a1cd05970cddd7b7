"""Exports of a checkpoint: a SavedModel of stock TensorFlow operations, and tables of rows."""
