"""Files and directories: whole or not there, locked, and never another's."""
