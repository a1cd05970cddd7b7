"""One hook a module: what happens around a step of a session."""
