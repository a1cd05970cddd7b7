"""Supervises a training: starts its workers with horovodrun, and restarts them after a failure."""
