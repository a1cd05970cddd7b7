"""Removes what came before a record of a publication."""

import re

from ctr_trainer.files.paths import path_of
from ctr_trainer.publication import records

_GENERATION = re.compile(r"generation-(\d{10})")
_NUMBERED = re.compile(r"(base|epoch|dense)-(\d{10})(?:\.json)?")


def remove_generations_before(url, generation):
    """Removes the generations of lower numbers, current or unfinished."""
    for number, path in _generations(url):
        if number < generation:
            path.remove_all()


def remove_before(url, record):
    """Removes bases, epochs and towers that no state from a record on needs.

    It goes by their numbers, so that it may run while records after that one are written.

    Args:
      url: path or URL of the publication.
      record: `Record`, which stays, with its files.
    """
    limits = {
        records.BASE: record.epoch,
        records.EPOCH: record.epoch + (record.kind == records.BASE),
        "dense": int(record.dense.rpartition("-")[2]),
    }
    directory = records.generation_path(url, record.generation)
    old = [path for path in directory.iterdir() if _is_below(path.name, limits)]
    for path in sorted(old, key=lambda path: path.suffix != ".json"):  # No record is left without its files.
        path.unlink() if path.suffix == ".json" else path.remove_all()


def newest_generation(url):
    """-> the highest number of a generation that has a directory; 0 if there is none."""
    return max((number for number, _ in _generations(url)), default=0)


def _generations(url):
    """-> list of (number, `Path`) of the directories of generations; what else lies there is the user's."""
    found = ((_GENERATION.fullmatch(path.name), path) for path in path_of(url).glob("generation-*"))
    return [(int(match[1]), path) for match, path in found if match]


def _is_below(name, limits):
    found = _NUMBERED.fullmatch(name)
    return found is not None and int(found[2]) < limits[found[1]]
