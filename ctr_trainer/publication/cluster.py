"""A Redis or Valkey cluster, as a publication uses it."""

import contextlib
import logging
import re

from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication import cluster_keys
from ctr_trainer.settings.publish_config import RedisFiles

_log = logging.getLogger(__name__)
_URL = re.compile(r"(rediss?)://([^/@]+?)(?:/([A-Za-z0-9_.-]+))?/?")
_PORT = 6379
_DEFAULT_NAME = "ctr"
CONTROL = cluster_keys.BUCKETS
_SECONDS = 5.0  # For a connection, and for an answer.


def is_cluster(url):
    """-> whether a URL is of a cluster."""
    return str(url).startswith(("redis://", "rediss://"))


class ClusterChanged(UserError):
    """A node was lost, or has other slots than before: what was sent may be lost, and is to be sent again."""


class ClusterFull(UserError):
    """A node has reached its `maxmemory`."""


class Cluster:
    """A connection to each primary of a cluster.

    `run` sends commands to all nodes at once, by redis-py's connections: its own pipeline of a cluster takes 20 us a
    command. It reaches a node's slots as long as they stay there; `ClusterChanged` says that they may have moved.

    Args:
      url: `redis://host:port,host:port/NAME` or `rediss://`; some of the nodes, and the name of the publication.
      redis: `RedisFiles`.

    Attributes:
      url: as given.
      name: of the publication.
      client: the `redis.RedisCluster`, for single commands; within `told`.
      primaries: {name of each primary: one of its buckets}.
      replicas: {name of each primary: number of its replicas that live}.

    Raises:
      UserError: the URL or a file cannot be used, no node answers, or they are no cluster.
    """

    def __init__(self, url, redis):
        self.url = url
        scheme, addresses, self.name = _parts(url)
        arguments = {**credentials_of(redis), **_tls(scheme, redis)}
        rediscluster, nodes = _client_classes()
        with self.told():
            self.client = rediscluster(
                startup_nodes=[nodes(host, port) for host, port in addresses],
                socket_timeout=_SECONDS,
                socket_connect_timeout=_SECONDS,
                protocol=2,
                **arguments,
            )
        self._read_nodes()

    def refresh(self):
        """Asks the cluster anew which node has which slots.

        Raises:
          ClusterChanged: it does not answer yet.
        """
        with self.told():
            self.client.nodes_manager.initialize()
        self._read_nodes()

    def _read_nodes(self):
        with self.told():
            found = [self.client.nodes_manager.get_node_from_slot(slot) for slot in cluster_keys.SLOTS]
            replicas = [len(self.client.nodes_manager.slots_cache[slot]) - 1 for slot in cluster_keys.SLOTS]
            control = self.client.get_node_from_key(cluster_keys.control_name(self.name, "state"))
        self._nodes = [*found, control]  # That of CONTROL is the last.
        self.primaries, self.replicas = {}, {}
        for bucket, node in enumerate(found):
            self.primaries.setdefault(node.name, bucket)
            self.replicas[node.name] = replicas[bucket]
        self.replicas.setdefault(control.name, 0)

    def run(self, commands):
        """Sends commands to the nodes of their buckets, each node's together, and waits for all answers.

        Args:
          commands: list of (bucket, arguments of a command whose keys are all of this bucket); `CONTROL` is the bucket
            of the names of `cluster_keys.control_name`.

        Returns:
          list of the answers in the order of the commands.

        Raises:
          ClusterChanged: a node was lost, or has not all of these slots.
          UserError: a node refuses a command.
        """
        by_node = {}
        for position, (bucket, _) in enumerate(commands):
            by_node.setdefault(self._nodes[bucket], []).append(position)
        answers = [None] * len(commands)
        with self.told(), contextlib.ExitStack() as stack:
            connections = []
            for node, positions in by_node.items():
                connection = stack.enter_context(self._connection(node))
                packed = connection.pack_commands([commands[position][1] for position in positions])
                connection.send_packed_command(packed)
                connections.append(connection)
            for connection, positions in zip(connections, by_node.values(), strict=True):
                for position in positions:
                    answers[position] = self._answer(connection)
        for position, answer in enumerate(answers):
            if isinstance(answer, Exception):
                with self.told():
                    answers[position] = self._in_migration(commands[position][1], answer)
        return answers

    @property
    def control(self):
        """The name of the primary that has the names of `cluster_keys.control_name`."""
        return self._nodes[-1].name

    def primary_of(self, bucket: int) -> str:
        """Returns the name of the primary that has a bucket."""
        return self._nodes[bucket].name

    def primary_nodes(self):
        """Returns the list of the primaries, as `client` names them."""
        return [self._nodes[bucket] for bucket in self.primaries.values()]

    def identity(self):
        """-> what changes if a primary is replaced, restarted or gets other slots: what was written to it may be lost.

        Raises:
          ClusterChanged: a node does not answer.
        """
        self.refresh()
        found = {}
        with self.told():
            for name, bucket in self.primaries.items():
                node = self.client.get_redis_connection(self._nodes[bucket])
                epoch = node.execute_command("CLUSTER INFO")["cluster_my_epoch"]
                found[name] = (node.info("server")["run_id"], epoch)
        return [found[node.name] for node in self._nodes[:-1]]

    @contextlib.contextmanager
    def _connection(self, node):
        """Gives a connection to a node. If the block raises, it is closed: answers may be on their way."""
        pool = self.client.get_redis_connection(node).connection_pool
        connection = pool.get_connection()
        try:
            yield connection
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    @staticmethod
    def _answer(connection):
        from redis.exceptions import ResponseError

        try:
            return connection.read_response()
        except ResponseError as error:
            return error

    def _in_migration(self, arguments, error):
        """-> the answer to a command of a slot that moves just now, key by key, by redis-py, which follows it.

        Raises:
          Exception: `error`, if it is another one.
        """
        from redis.exceptions import AskError, TryAgainError

        if not isinstance(error, AskError | TryAgainError):
            raise error
        if arguments[0] == "MGET":
            return [self.client.get(key) for key in arguments[1:]]
        if arguments[0] == "MSET":
            return all(self.client.set(*pair) for pair in zip(arguments[1::2], arguments[2::2], strict=True))
        return self.client.execute_command(*arguments)

    def close(self):
        """Closes the connections."""
        self.client.close()

    @contextlib.contextmanager
    def told(self):
        """Says what an error of the cluster means, and what to do.

        Raises:
          ClusterChanged, UserError
        """
        from redis import exceptions

        try:
            yield
        except exceptions.OutOfMemoryError as error:
            raise ClusterFull(
                f"{self.url}: the cluster is full ({error}): raise maxmemory of its nodes, or add nodes and reshard; "
                "the delivery is tried again then"
            ) from None
        except (exceptions.AuthenticationError, exceptions.NoPermissionError) as error:
            raise UserError(f"{self.url}: {error}: look at --redis_auth_file and at the user's rights") from None
        except exceptions.RedisClusterException as error:  # It tells little apart.
            raise ClusterChanged(
                f"{self.url}: {error}; is it a cluster that runs, and has the user of --redis_auth_file all rights?"
            ) from None
        except (
            exceptions.MovedError,
            exceptions.AskError,
            exceptions.TryAgainError,
            exceptions.ClusterDownError,
            exceptions.MasterDownError,
            exceptions.ReadOnlyError,
            exceptions.BusyLoadingError,
            exceptions.SlotNotCoveredError,
            exceptions.ConnectionError,
            exceptions.TimeoutError,
        ) as error:
            raise ClusterChanged(f"{self.url}: {type(error).__name__}: {error}") from None
        except exceptions.RedisError as error:
            raise UserError(
                f"{self.url}: {type(error).__name__}: {error}; is it a cluster of Redis or Valkey?"
            ) from None


def _parts(url):
    """-> (scheme, list of (host, port), name)."""
    found = _URL.fullmatch(url)
    try:
        scheme, hosts, name = found.groups()
        pairs = [host.rpartition(":") if ":" in host else (host, "", _PORT) for host in hosts.split(",")]
        return scheme, [(host, int(port)) for host, _, port in pairs], name or _DEFAULT_NAME
    except (AttributeError, ValueError):
        raise UserError(
            f"{url}: expected redis://HOST:PORT,HOST:PORT/NAME, with rediss:// for TLS; user and password stand in the "
            "file that --redis_auth_file names"
        ) from None


def credentials_of(redis: RedisFiles) -> dict[str, str]:
    """Returns the user and the password that the file names, as redis-py takes them."""
    if not redis.redis_auth_file:
        return {}
    try:
        lines = path_of(redis.redis_auth_file).read_bytes().decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--redis_auth_file={redis.redis_auth_file}: cannot be read: {error}") from None
    if not lines or not lines[0].strip():
        raise UserError(
            f"--redis_auth_file={redis.redis_auth_file}: is empty: its first line is PASSWORD or USER:PASSWORD, "
            "or :PASSWORD if the password has a colon"
        )
    user, colon, password = lines[0].strip().partition(":")
    if not colon:
        return {"password": user}
    return {"username": user, "password": password} if user else {"password": password}


def _tls(scheme, redis):
    files = dict(ssl_ca_certs=redis.redis_ca, ssl_certfile=redis.redis_cert, ssl_keyfile=redis.redis_key)
    files = {name: file for name, file in files.items() if file}
    if scheme == "rediss":
        return {"ssl": True, **files}
    if files:
        raise UserError(
            "--redis_ca, --redis_cert and --redis_key are for TLS: name the cluster by rediss:// and not redis://"
        )
    return {}


def _client_classes():
    try:
        from redis.cluster import ClusterNode, RedisCluster
    except ImportError:
        raise UserError("a cluster needs the package redis: pip install 'ctr_trainer[publish]'") from None
    return RedisCluster, ClusterNode
