"""Ends a process together with the process that started it, also if that one is killed."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def ended_with_parent():
    """-> `preexec_fn` of a `subprocess.Popen` whose process gets SIGTERM when the thread that starts it ends.

    A thread ends with its process, however that ends. So call Popen in the main thread. On another system than Linux
    the function does nothing.
    """
    parent = os.getpid()

    def ask_the_kernel():
        if _LIBC is not None and _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) == 0 and os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)  # The parent has ended before the kernel was asked.

    return ask_the_kernel
