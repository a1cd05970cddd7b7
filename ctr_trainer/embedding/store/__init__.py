"""A store, which holds tables by name, and the encoding of rows between a store and its workers."""
