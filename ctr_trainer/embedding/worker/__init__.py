"""The worker's side of the rows: its copies, its lookups, and how its changes are merged."""
