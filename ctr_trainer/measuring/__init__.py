"""What is measured of a run: latencies, phases of a step, memory."""
