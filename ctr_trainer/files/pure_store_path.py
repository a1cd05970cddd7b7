"""Names of a store's objects, as paths."""

import fnmatch
import pathlib
import posixpath
import re

from ctr_trainer.files.file_systems import Root

# A `?` is part of a pattern, unless options of the connection follow it.
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?]*)(/.*?)?(?:\?([a-z_]+=[^/?]*(?:/[^?]*)?))?", re.DOTALL)


def is_url(text):
    """-> whether a text is a URL, and not a path."""
    return re.match(r"[a-z][a-z0-9+.-]*://", text) is not None


class PureStorePath:
    """What can be said of a path in a store without asking the store, as `pathlib.PurePath`.

    Args:
      root: `Root` of the store.
      key: path below the root, without a `/` at its ends.
    """

    def __init__(self, root, key):
        self._root, self._key = root, key

    @classmethod
    def of(cls, url):
        """-> the path of a URL."""
        scheme, authority, key, query = _URL.fullmatch(url).groups()
        return cls(Root(scheme, authority, query or ""), _normal(key or ""))

    def __str__(self):
        return self._root.url(self._key)

    __repr__ = __str__

    def __eq__(self, other):
        return str(self) == str(other)

    def __hash__(self):
        return hash(str(self))

    def __lt__(self, other):
        return str(self) < str(other)

    def __truediv__(self, name):
        if is_url(str(name)):
            return self.of(str(name))  # As an absolute path: below another one it stays what it is.
        return type(self)(self._root, _normal(posixpath.join(self._key, str(name))))

    def __rtruediv__(self, other):
        return self

    @property
    def name(self):
        return posixpath.basename(self._key)

    @property
    def stem(self):
        return pathlib.PurePosixPath(self._key).stem

    @property
    def suffix(self):
        return pathlib.PurePosixPath(self._key).suffix

    @property
    def parent(self):
        return type(self)(self._root, posixpath.dirname(self._key))

    @property
    def parents(self):
        return [self.parent, *self.parent.parents] if self._key else []

    def with_name(self, name):
        return self.parent / name

    def resolve(self):
        return self

    def absolute(self):
        return self

    def is_relative_to(self, other):
        return self == other or other in self.parents

    def match(self, pattern):
        own, wanted = str(self).split("/"), pattern.split("/")
        return len(own) == len(wanted) and all(map(fnmatch.fnmatchcase, own, wanted))


def _normal(key):
    """-> a key without `.`, `..`, and `/` at its ends."""
    return posixpath.normpath(f"/{key}").strip("/")
