"""A process, its threads, cores and commands, and how long each is waited for."""
