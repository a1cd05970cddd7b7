"""`python -m ctr_trainer`."""

import sys

from ctr_trainer.cli import main

sys.exit(main())
