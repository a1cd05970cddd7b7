"""A connection to a Redis or Valkey cluster, and the names of a publication's data there.

    {NAME}fence, {NAME}generation, {NAME}state, {NAME}commits,                       all in one slot
    {NAME}tower:GENERATION:VERSION
    {00a3}NAME:GENERATION:TABLE:KEY                                                  a row; KEY is 8 little-endian bytes
    {00a3}NAME:GENERATION:mark                                                       see `cluster_contents`

Rows are spread over 1,024 buckets, each in a slot of its own. One command accesses many rows of a bucket, and each node
has a share of the buckets.
"""

from __future__ import annotations

import binascii
import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ctr_trainer.embedding.index.key_kernels import shard_of
from ctr_trainer.live.redis_files import credentials_of, tls_of
from ctr_trainer.settings.training_configs import RedisFiles
from ctr_trainer.system.messages.errors import UserError

if TYPE_CHECKING:  # An optional dependency.
    from redis import Connection
    from redis.cluster import ClusterNode, RedisCluster

_URL = re.compile(r"(rediss?)://([^/@]+?)(?:/([A-Za-z0-9_.-]+))?/?")
_PORT = 6379
_DEFAULT_NAME = "ctr"
BUCKETS = 1024
_SLOTS = 16384
_TAGS = [b"{%04x}" % bucket for bucket in range(BUCKETS)]
_TAG_BYTES = np.frombuffer(b"".join(_TAGS), np.uint8).reshape(BUCKETS, -1)
_KNOWN_TAGS = frozenset(_TAGS)
# Only the text between the braces is hashed.
SLOTS = [binascii.crc_hqx(tag[1:-1], 0) % _SLOTS for tag in _TAGS]
CONTROL = BUCKETS  # The bucket of the names of `control_name`.
_SECONDS = 5.0  # Timeout of a connection attempt and of an answer.
Command = tuple[int, Sequence[Any]]  # A bucket or `CONTROL`, and the arguments of a command whose keys are all in it.


def is_cluster(url: object) -> bool:
    return str(url).startswith(("redis://", "rediss://"))


class ClusterChanged(UserError):
    """A node does not answer, or its slots have moved. The commands may be lost and must be sent again."""


class ClusterFull(UserError):
    """A node has reached its `maxmemory`."""


class Cluster:
    """A connection to each primary of a cluster.

    `run` sends commands to all nodes at once through redis-py's connections, because redis-py's pipeline for clusters
    takes 20 us per command. `run` assumes that slots stay on their nodes, and raises `ClusterChanged` if a slot has
    moved.

    `url`: `redis://host:port,host:port/NAME` or `rediss://`: some of the nodes, and the name of the publication.

    Attributes:
      name: name of the publication.
      primaries: {name of each primary: one of its buckets}.
      replicas: {name of each primary: number of its live replicas}.

    Raises UserError: the URL or a file cannot be used, no node answers, or the nodes are not a cluster.
    """

    def __init__(self, url: str, redis: RedisFiles) -> None:
        self.url = url
        scheme, addresses, self.name = _parts(url)
        arguments = {**credentials_of(redis), **tls_of(scheme, redis)}
        try:
            from redis.cluster import ClusterNode, RedisCluster
        except ImportError:
            raise UserError("a cluster needs the package redis: pip install 'ctr_trainer[publish]'") from None
        with self._told():
            self._client: RedisCluster = RedisCluster(
                startup_nodes=[ClusterNode(host, port) for host, port in addresses],
                socket_timeout=_SECONDS,
                socket_connect_timeout=_SECONDS,
                protocol=2,
                **arguments,
            )
        self._read_nodes()

    def refresh(self) -> None:
        """Reads the assignment of slots to nodes again. Raises ClusterChanged if the cluster does not answer yet."""
        with self._told():
            self._client.nodes_manager.initialize()
        self._read_nodes()

    def _read_nodes(self) -> None:
        with self._told():
            found = [self._client.nodes_manager.get_node_from_slot(slot) for slot in SLOTS]
            replicas = [len(self._client.nodes_manager.slots_cache[slot]) - 1 for slot in SLOTS]
            control = self._client.get_node_from_key(control_name(self.name, "state"))
        # Another thread may be reading these attributes, so each is replaced as a whole.
        self._nodes: list[ClusterNode] = [*found, control]  # `CONTROL` is the index of the last node.
        buckets = range(len(found))
        self.primaries: dict[str, int] = {found[bucket].name: bucket for bucket in reversed(buckets)}
        self.replicas: dict[str, int] = {control.name: 0} | {found[at].name: replicas[at] for at in buckets}

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """Sends commands to the nodes of their buckets, one message per node, and waits for all answers.

        Returns the answers in the order of the commands.

        Raises:
          ClusterChanged: a node was lost, no longer has all of these slots, or refuses a command.
          ClusterFull: a node has no room.
        """
        from redis.exceptions import ResponseError

        by_node: dict[ClusterNode, list[int]] = {}
        for position, (bucket, _) in enumerate(commands):
            by_node.setdefault(self._nodes[bucket], []).append(position)
        answers: list[Any] = [None] * len(commands)
        with self._told(), contextlib.ExitStack() as stack:
            connections = []
            for node, positions in by_node.items():
                connection = stack.enter_context(self._connection(node))
                packed = connection.pack_commands([commands[position][1] for position in positions])
                connection.send_packed_command(packed)
                connections.append(connection)
            for connection, positions in zip(connections, by_node.values(), strict=True):
                for position in positions:
                    try:
                        answers[position] = connection.read_response()
                    except ResponseError as error:
                        answers[position] = error
        for position, answer in enumerate(answers):
            if isinstance(answer, Exception):
                with self._told():
                    answers[position] = self._in_migration(commands[position][1], answer)
        return answers

    def primary_of(self, bucket: int) -> str:
        return self._nodes[bucket].name

    def ask(self, *command: Any) -> Any:
        """Sends one command, and follows its key to another node. Raises the errors of `run`."""
        with self._told():
            return self._client.execute_command(*command)

    def info(self, *fields: tuple[str, str]) -> dict[str, list[str]]:
        """Returns {name of each primary: values of the fields}; a field is (command, name), as ("INFO", "run_id")."""
        found = {}
        for name, bucket in self.primaries.items():
            answers = self.run([(bucket, command.split()) for command, _ in fields])
            lines = [dict(line.partition(":")[::2] for line in answer.decode().splitlines()) for answer in answers]
            found[name] = [values.get(field, "") for values, (_, field) in zip(lines, fields, strict=True)]
        return found

    def identity(self) -> list[list[str]]:
        """Returns the run id and the epoch of each bucket's primary.

        These change if a primary is replaced, restarted or given other slots. Writes to it may then be lost.
        """
        self.refresh()
        found = self.info(("INFO server", "run_id"), ("CLUSTER INFO", "cluster_my_epoch"))
        return [found[node.name] for node in self._nodes[:-1]]

    @contextlib.contextmanager
    def _connection(self, node: ClusterNode) -> Iterator[Connection]:
        """Yields a connection to a node. Closes it if the block raises, because answers may still arrive on it."""
        pool = self._client.get_redis_connection(node).connection_pool
        connection = pool.get_connection()
        try:
            yield connection
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    def _in_migration(self, arguments: Sequence[Any], error: Exception) -> Any:
        """Repeats a command whose slot is moving, key by key, through redis-py's client. Raises any other `error`."""
        from redis.exceptions import AskError, TryAgainError

        if not isinstance(error, AskError | TryAgainError):
            raise error
        if arguments[0] == "MGET":
            return [self._client.get(key) for key in arguments[1:]]
        if arguments[0] == "MSET":
            return all(self._client.set(*pair) for pair in zip(arguments[1::2], arguments[2::2], strict=True))
        return self._client.execute_command(*arguments)

    def close(self) -> None:
        self._client.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turns each error of redis-py in the block into a UserError that explains the error and its remedy."""
        from redis import exceptions

        try:
            yield
        except exceptions.OutOfMemoryError as error:
            raise ClusterFull(
                f"{self.url}: the cluster is full ({error}): raise maxmemory of its nodes, or add nodes and reshard; "
                "the delivery then continues"
            ) from None
        except (exceptions.AuthenticationError, exceptions.NoPermissionError) as error:
            raise UserError(f"{self.url}: {error}: check redis_auth_file and the rights of the user in it") from None
        except (exceptions.RedisError, exceptions.RedisClusterException) as error:
            raise ClusterChanged(
                f"{self.url}: {type(error).__name__}: {error}; check that the cluster runs, and that the user in "
                "redis_auth_file has all rights"
            ) from None


def _parts(url: str) -> tuple[str, list[tuple[str, int]], str]:
    """Returns the scheme, (host, port) of each address, and the name of the publication."""
    found = _URL.fullmatch(url)
    try:
        if found is None:
            raise ValueError
        scheme, hosts, name = found.groups()
        pairs = [host.rpartition(":") if ":" in host else (host, "", _PORT) for host in hosts.split(",")]
        return scheme, [(host, int(port)) for host, _, port in pairs], name or _DEFAULT_NAME
    except ValueError:
        raise UserError(
            f"{url}: expected redis://HOST:PORT,HOST:PORT/NAME, with rediss:// for TLS; write user and password into "
            "the file that redis_auth_file names"
        ) from None


def buckets_of(keys: np.ndarray) -> np.ndarray:
    """Returns int32[n], the buckets of int64[n] keys."""
    buckets = np.empty(len(keys), np.int32)
    shard_of(np.require(keys, np.int64, ("C", "A")), BUCKETS, buckets)
    return buckets


def row_names(name: str, generation: int, table: str, keys: np.ndarray, buckets: np.ndarray) -> list[bytes]:
    """Returns the names of the rows of int64[n] keys with int32[n] buckets."""
    middle = np.frombuffer(f"{name}:{generation}:{table}:".encode(), np.uint8)
    names = np.empty((len(keys), _TAG_BYTES.shape[1] + len(middle) + 8), np.uint8)
    names[:, : _TAG_BYTES.shape[1]] = _TAG_BYTES[buckets]
    names[:, _TAG_BYTES.shape[1] : -8] = middle
    names[:, -8:] = np.require(keys, "<i8", ("C",)).view(np.uint8).reshape(-1, 8)
    return as_bytes(names)


def generation_of(name: str, row: bytes) -> int | None:
    """Returns the generation in a name like `{????}NAME:*`; None if it names neither a row nor a mark."""
    tag, rest = row[: _TAG_BYTES.shape[1]], row[_TAG_BYTES.shape[1] + len(name.encode()) + 1 :]
    found = rest.split(b":", 1)
    return int(found[0]) if tag in _KNOWN_TAGS and len(found) == 2 and found[0].isdigit() else None


def mark_name(name: str, generation: int, bucket: int) -> bytes:
    return _TAGS[bucket] + f"{name}:{generation}:mark".encode()


def control_name(name: str, what: str) -> str:
    """Returns the full name of `fence`, `generation`, `state`, `commits` or a tower."""
    return f"{{{name}}}{what}"


def as_bytes(values: np.ndarray) -> list[bytes]:
    """Returns the rows of a uint8[n, width] array as bytes."""
    return np.ascontiguousarray(values).view(f"V{values.shape[1]}").ravel().tolist()
