"""A store, which holds tables by name, and what it and its user tell each other of rows."""
