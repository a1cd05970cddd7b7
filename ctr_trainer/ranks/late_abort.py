"""Lets a process that aborts say its last words first."""

import ctypes
import signal

SECONDS = int(signal.SIGABRT)


def install():
    """Has an abort of this process wait for 6 s, in which its other threads go on.

    Where a rank is lost in the middle of an exchange, the rest of a message may meet the next one in a rank that is
    left: a thread of Gloo's raises `gloo::EnforceNotMet`, which nobody catches, and C++ aborts the process. Meanwhile
    `horovodrun` asks the ranks to end, and within these seconds `LastWords` says which rank was lost.

    The handler of SIGABRT is the C library's own `sleep`: it takes no lock and runs no Python, so that it cannot hang,
    whatever the process has aborted for. It gets the signal's number, 6, as its seconds.
    """
    library = ctypes.CDLL(None)
    library.signal.argtypes, library.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    library.signal(signal.SIGABRT, ctypes.cast(library.sleep, ctypes.c_void_p))
