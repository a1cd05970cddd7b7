"""The ranks of a job: their start, communication, gradient exchange and end."""
