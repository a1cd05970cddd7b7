"""Metrics that add up over workers."""
