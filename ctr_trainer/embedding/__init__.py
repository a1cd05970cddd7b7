"""Embedding rows: their memory, index and tables, the service that holds them, and the copies that workers keep."""
