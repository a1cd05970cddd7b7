"""The ranks of a job: how they start, meet, add up their gradients and end."""
