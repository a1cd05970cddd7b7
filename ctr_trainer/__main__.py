"""`python -m ctr_trainer`."""

import contextlib
import logging
import os
import sys

from ctr_trainer.cli import main
from ctr_trainer.system.messages import errors


def _end(status: int) -> None:
    """Ends the process, after a loss at once: TensorFlow and Horovod take seconds of the restart to be taken down."""
    if status in (errors.LOST, errors.FAILED):
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(status)
    sys.exit(status)


_end(main())
