"""Files and directories that are written atomically, locked while in use, and never overwrite files of others."""
