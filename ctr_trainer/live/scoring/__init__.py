"""The scoring server, which predicts from raw values with the newest published rows and dense tower."""
