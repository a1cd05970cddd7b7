"""Memory for embedding rows: arrays that grow in place, memory limits, and memory shared by the workers of one host."""
