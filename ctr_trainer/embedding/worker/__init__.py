"""What a worker keeps of rows: copies, lookups, how its changes are merged."""
