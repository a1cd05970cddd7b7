"""The types of paths, on a local disk or in a store; `paths.path_of` creates a path."""

import os
from typing import TypeAlias

from ctr_trainer.system.files.lease import FileLease, StoreLease
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import StorePath

# For the methods, see `LocalPath`.
Path = LocalPath | StorePath
# A lease that only this process holds, until `close` or until the process ends.
PathLease = FileLease | StoreLease
AnyPath: TypeAlias = str | os.PathLike | Path  # A path or URL that a user may specify; see `paths.path_of`.
