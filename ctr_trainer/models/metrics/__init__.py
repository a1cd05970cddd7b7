"""Metrics whose states add up over workers."""
