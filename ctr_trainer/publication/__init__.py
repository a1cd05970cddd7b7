"""Publications: what a training gives to serving while it goes on, and readers of it."""
