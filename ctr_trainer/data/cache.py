"""Sources that are converted on first use, and read as converted from then on."""

import hashlib
import json
import os
import pathlib
import shutil

from ctr_trainer.data.convert import convert
from ctr_trainer.data.dataset import FILE
from ctr_trainer.data.listing import list_files


def converted(source, format, spec, directory, progress=True, labels=True):
    """-> the path of the converted source below `directory`; converts it where it is not there yet.

    A conversion is found by the spec and by its files' paths, sizes and times of change; one that ended early leaves
    nothing behind that would be taken for it. Conversions that are no longer wanted stay: remove them as you like.

    Args:
      source: as `list_files` takes it.
      format: of `convert`.
      spec: FeatureSpec.
      directory: of the conversions; made if need be.
      progress: show a bar where stderr is a terminal.
      labels: False where labels and weights are not needed: a conversion with them will do, and a new one has none.

    Raises:
      UserError: as `convert`; every row must be usable.
    """
    there = pathlib.Path(directory) / _name(source, format, spec)
    if not labels and not (there / FILE).is_file():
        spec = spec.without_labels()
        there = pathlib.Path(directory) / _name(source, format, spec)
    if not (there / FILE).is_file():
        draft = there.with_name(f"{there.name}.{os.getpid()}.unfinished")
        try:
            convert(format, source, draft, spec, progress=progress)
            if not there.exists():  # another job may have been as quick
                draft.rename(there)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return str(there)


def _name(source, format, spec):
    """-> the name of a conversion's directory."""
    stats = [(os.path.abspath(file.path), os.stat(file.path)) for file in list_files(source)]
    identity = [
        format,
        spec.to_dict(),
        *(() if spec.labelled else ("unlabelled",)),
        [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats],
    ]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]
