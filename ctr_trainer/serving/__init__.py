"""What serves a trained model: the export, the live publication of its rows, and the server that scores requests."""
