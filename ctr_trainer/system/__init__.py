"""Files, processes, clocks and messages, which the rest of the package uses. Nothing here depends on models."""
