"""An experiment: all its settings, which of them go together, and what a run needs, built of them once."""
