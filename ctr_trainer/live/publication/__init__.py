"""Publications: rows and dense towers that a training run delivers to servers, and the readers of publications."""
