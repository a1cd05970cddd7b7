"""Memory: arrays that grow in place, its limits, and what the workers of a host share."""
