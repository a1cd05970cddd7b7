"""URLs of stores, and their file systems. Each file system is opened once."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import os
import pathlib
import posixpath
import re
import urllib.parse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ctr_trainer.system.messages.errors import UserError

if TYPE_CHECKING:
    from pyarrow import fs
    from typing_extensions import Self

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ATTEMPTS = "AWS_MAX_ATTEMPTS"
_DEFAULT_ATTEMPTS = 10  # With the pauses between them, they take 100 s, in which a store can restart.
# A `?` is part of a pattern, unless options of the connection follow it.
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?]*)(/.*?)?(?:\?([a-z_]+=[^/?]*(?:/[^?]*)?))?", re.DOTALL)
_PASSWORD = re.compile(":.*@|[?&][^=&]*(key|secret|token|password|sig)[^=&]*=")


@dataclasses.dataclass(frozen=True)
class Root:
    """The parts of a URL that name a store: `SCHEME://AUTHORITY?QUERY`, such as `s3://bucket?region=eu-central-1`."""

    scheme: str
    authority: str
    query: str = ""

    def url(self, key: str = "") -> str:
        """Returns the URL of a key in this store."""
        return f"{self.scheme}://{self.authority}{f'/{key}' if key else ''}{f'?{self.query}' if self.query else ''}"


def opened(root: Root) -> tuple[fs.FileSystem, str]:
    """Returns (`pyarrow.fs.FileSystem`, path of the store's root in this file system, without a `/` at its end).

    Raises UserError if pyarrow does not support the URL, the URL has a password, or the store does not answer.
    """
    return _opened(root, *map(os.environ.get, (*_ENDPOINTS, *_REGIONS, _ATTEMPTS)))


@functools.lru_cache
def _opened(root: Root, *_: str | None) -> tuple[fs.FileSystem, str]:
    """Opens a file system for a root and the values of the variables that `_s3` reads."""
    from pyarrow import ArrowInvalid, fs

    if _PASSWORD.search(root.authority) or _PASSWORD.search(urllib.parse.unquote(f"?{root.query}")):
        raise UserError(
            f"{root.scheme}://{re.sub('.*@', '...@', root.authority)}{root.query and '?...'}: a password in a URL "
            "would appear in logs and checkpoints; give it the way that the store reads it, such as AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY"
        )
    try:
        if root.scheme == "s3":
            return _s3(root), root.authority
        found, base = fs.FileSystem.from_uri(root.url())
        return found, base.rstrip("/")
    except (ArrowInvalid, OSError, TypeError, ValueError) as error:
        raise UserError(
            f"{root.url()}: cannot be opened: {error}; {advice(root)}. URLs are opened by pyarrow.fs: s3://, gs://, "
            "hdfs://, abfs://, file://"
        ) from None


def advice(root: Root) -> str:
    """Returns advice on what to check if a store refuses a request or does not answer."""
    if root.scheme == "s3":
        return (
            "check that the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws), the region "
            "(AWS_REGION) and, of a store that is not Amazon's, the endpoint (AWS_ENDPOINT_URL, or "
            f"s3://bucket/key?endpoint_override=host:port&scheme=http) are right; {_ATTEMPTS} says how often a request "
            "is tried"
        )
    return "check that this host reaches the store, and that the credentials are right"


def _s3(root: Root) -> fs.S3FileSystem:
    """Returns the `S3FileSystem` of a bucket. The AWS variables provide the options that the URL does not specify."""
    from pyarrow import fs

    options = dict(urllib.parse.parse_qsl(root.query))
    endpoint = urllib.parse.urlsplit(_of_environment(_ENDPOINTS))
    if endpoint.netloc and "endpoint_override" not in options:
        options.update(endpoint_override=endpoint.netloc, scheme=options.get("scheme", endpoint.scheme))
    region = options.pop("region", "") or _of_environment(_REGIONS)
    if not region:
        region = "us-east-1" if "endpoint_override" in options else fs.resolve_s3_region(root.authority)
    attempts = int(os.environ.get(_ATTEMPTS) or _DEFAULT_ATTEMPTS)
    return fs.S3FileSystem(
        region=region, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=attempts), **options
    )


def _of_environment(names: Iterable[str]) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def is_url(text: str) -> bool:
    """Whether a text is a URL, and not a path."""
    return re.match(r"[a-z][a-z0-9+.-]*://", text) is not None


class PureStorePath:
    """The properties of a path in a store that need no request to the store, like `pathlib.PurePath`."""

    def __init__(self, root: Root, key: str) -> None:
        self._root, self._key = root, key

    @classmethod
    def of(cls, url: str) -> Self:
        """Returns the path of a URL."""
        found = _URL.fullmatch(url)
        assert found is not None, url
        scheme, authority, key, query = found.groups()
        return cls(Root(scheme, authority, query or ""), _normal(key or ""))

    def __str__(self) -> str:
        return self._root.url(self._key)

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: object) -> bool:
        return str(self) < str(other)

    def __truediv__(self, name: Any) -> Self:
        if is_url(str(name)):
            return self.of(str(name))  # Like an absolute path, which is unchanged below another path.
        return type(self)(self._root, _normal(posixpath.join(self._key, str(name))))

    def __rtruediv__(self, other: object) -> Self:
        return self

    @property
    def name(self) -> str:
        return posixpath.basename(self._key)

    @property
    def stem(self) -> str:
        return pathlib.PurePosixPath(self._key).stem

    @property
    def suffix(self) -> str:
        return pathlib.PurePosixPath(self._key).suffix

    @property
    def parent(self) -> Self:
        return type(self)(self._root, posixpath.dirname(self._key))

    @property
    def parents(self) -> list[Self]:
        return [self.parent, *self.parent.parents] if self._key else []

    def with_name(self, name: str) -> Self:
        return self.parent / name

    def resolve(self) -> Self:
        return self

    def absolute(self) -> Self:
        return self

    def is_relative_to(self, other: Any) -> bool:
        return self == other or other in self.parents

    def match(self, pattern: str) -> bool:
        own, wanted = str(self).split("/"), pattern.split("/")
        return len(own) == len(wanted) and all(map(fnmatch.fnmatchcase, own, wanted))


def _normal(key: str) -> str:
    """Returns a key without `.`, `..`, and `/` at its ends."""
    return posixpath.normpath(f"/{key}").strip("/")
