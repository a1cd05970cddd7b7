"""Supervises a training: starts its workers under horovodrun, and restarts them after a loss."""
