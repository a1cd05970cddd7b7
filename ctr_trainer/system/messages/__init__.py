"""Texts for the user: errors, log lines and durations."""
