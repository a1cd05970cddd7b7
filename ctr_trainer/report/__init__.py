"""What the runs in their directories have come to, side by side."""
