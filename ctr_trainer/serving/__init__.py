"""Serves trained models: exports, live publications of rows, and the server that scores requests."""
