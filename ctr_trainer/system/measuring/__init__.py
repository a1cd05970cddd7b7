"""Measurements of a run: latencies, phases of a step, memory."""
