"""The scoring server: it predicts from raw values with the newest rows and dense tower that a training published."""
