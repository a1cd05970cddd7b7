"""The scoring server: raw values in, predictions out, of the newest rows and tower that a training has published."""
