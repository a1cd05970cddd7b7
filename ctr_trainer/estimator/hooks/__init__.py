"""Session hooks: the actions before and after each step of a training."""
