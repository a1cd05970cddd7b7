"""Publications: rows and dense towers that a training gives to serving while it runs, and readers of them."""
