"""The commands: each module has the flags, the examples and the function of one command."""
