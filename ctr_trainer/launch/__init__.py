"""Supervises a training: starts its workers under horovodrun, and after a loss starts them again on what is there."""
