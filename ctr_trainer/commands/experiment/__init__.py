"""An experiment: its settings, the checks of their combinations, and the objects of a run that are built from them."""
