"""Texts for the user: errors, lines of the log and durations."""
