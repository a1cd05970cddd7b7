"""Checkpoints, the model directory that holds them, and the record of a model by which another one is refused."""
