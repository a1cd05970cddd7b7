"""What the exit status of a command says of its end."""

# An error that the user can mend: the same command would end the same way.
REFUSED = 1
# Wrong flags.
USAGE = 2
# An error that nobody expected (EX_SOFTWARE of BSD's sysexits.h).
FAILED = 70
# A rank, a host or a service is gone, or hangs: the same command may go on (EX_TEMPFAIL there).
LOST = 75
# SIGINT, SIGTERM.
INTERRUPTED, TERMINATED = 130, 143
