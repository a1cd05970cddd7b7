"""`python -m ctr_trainer`."""

import contextlib
import logging
import os
import sys

from ctr_trainer.cli import main


def _end(status):
    """Ends the process, after a failure at once: TensorFlow and Horovod take seconds to be taken down."""
    if status:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(status)
    sys.exit(status)


_end(main())
