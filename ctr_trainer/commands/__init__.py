"""One command a module: what it takes, its examples and what it does."""
