"""What a user reads: errors, lines of the log, durations; and what is kept out of the log."""
