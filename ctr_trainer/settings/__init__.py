"""Settings: fields of frozen dataclasses, each declared once; flags and Python arguments are checked alike."""
