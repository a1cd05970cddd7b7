"""A store, which holds tables by name, and the messages about rows between a store and its user."""
