"""Makes the reader of a publication, by its URL."""

from ctr_trainer.publication.directory_reader import DirectoryReader


def open_reader(url, cache_dir=""):
    """-> the `RowReader` of a publication.

    Args:
      url: path or URL of the publication's directory.
      cache_dir: local directory for rows and towers; "" for the system's directory of temporary files.

    Raises:
      UserError: there is no publication, or it cannot be read.
    """
    return DirectoryReader(url, cache_dir)
