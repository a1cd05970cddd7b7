"""Opens the target and the reader of a publication by its URL."""

from ctr_trainer.publication.cluster import is_cluster
from ctr_trainer.publication.cluster_reader import ClusterReader
from ctr_trainer.publication.cluster_target import ClusterTarget
from ctr_trainer.publication.directory_reader import DirectoryReader
from ctr_trainer.publication.directory_target import DirectoryTarget
from ctr_trainer.settings.publish_config import RedisFiles


def open_target(url, redis=RedisFiles()):  # noqa: B008, it is frozen
    """-> the `Target` at a path or URL; `close` gives it back.

    Args:
      url: path or URL of a directory, or `redis://` or `rediss://` of a cluster.
      redis: `RedisFiles` of a cluster.

    Raises:
      UserError: another process publishes there, or the place does not answer.
    """
    if is_cluster(url):
        return ClusterTarget(url, redis)
    return DirectoryTarget(url)


def open_reader(url, cache_dir="", redis=RedisFiles(), cache_rows=100_000, cache_secs=1.0):  # noqa: B008, it is frozen
    """-> the `RowReader` of a publication.

    Args:
      url: path or URL of the publication's directory, or `redis://` or `rediss://` of a cluster.
      cache_dir: local directory for rows and towers; "" for the system's directory of temporary files.
      redis: `RedisFiles` of a cluster.
      cache_rows, cache_secs: of a cluster, see `ClusterReader`.

    Raises:
      UserError: there is no publication, or it cannot be read.
    """
    if is_cluster(url):
        return ClusterReader(str(url), redis, cache_dir, cache_rows, cache_secs)
    return DirectoryReader(url, cache_dir)
