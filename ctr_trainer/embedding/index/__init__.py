"""The hash index, from a 64-bit key to the slot of its row."""
