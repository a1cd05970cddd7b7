"""What is compiled when the package is installed."""
