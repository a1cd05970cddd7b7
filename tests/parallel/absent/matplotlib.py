raise ImportError("workers do not need matplotlib")
