"""Texts for the user: errors, lines of the log and durations; and a filter of TensorFlow's noise."""
