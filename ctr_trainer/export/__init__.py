"""What leaves a checkpoint: a SavedModel of stock operations, and tables of rows."""
