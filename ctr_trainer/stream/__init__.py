"""Training from a stream: Kafka topics and Redis streams, with exact positions in the checkpoints."""
