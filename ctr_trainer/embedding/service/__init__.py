"""The embedding lookup service over Arrow Flight, and its client."""
