"""The models, one per module, and the registry that finds them by name."""
