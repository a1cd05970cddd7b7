"""Measurements of a run: latencies, phases of steps, and memory."""
