"""Train click-through-rate models with TensorFlow and Horovod, their embeddings in a lookup service."""

__version__ = "0.2.0"
