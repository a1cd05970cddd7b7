"""One model a module, and the registry that finds it by name."""
