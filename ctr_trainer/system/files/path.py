"""The types of paths, on a local disk or in a store; `paths.path_of` makes a path."""

import os
from typing import TypeAlias

from ctr_trainer.system.files.lease import FileLease, StoreLease
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import StorePath

# The methods are described in `LocalPath`.
Path = LocalPath | StorePath
# What this process holds alone, until `close` or until the process ends.
PathLease = FileLease | StoreLease
AnyPath: TypeAlias = str | os.PathLike | Path  # What a user may name; see `paths.path_of`.
