"""Training from Kafka topics and Redis streams, with exact positions in the checkpoints."""
