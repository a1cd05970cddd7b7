"""Tables on disk as Arrow IPC files."""
