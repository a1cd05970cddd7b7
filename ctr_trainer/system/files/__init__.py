"""Files and directories that are written whole, locked while in use, and never overwrite files of others."""
