"""Makes the target of a publication, by its URL."""

from ctr_trainer.publication.cluster import is_cluster
from ctr_trainer.publication.cluster_target import ClusterTarget
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
