"""What measures training jobs, and how much of a machine or network they need."""
