"""Caches: values that are remembered only to save time.

Every cache of relock is a `Cache`, and three rules hold for each.

* Nothing depends on a cache. A value that was forgotten is made again, and is as good: values are compared as values,
  never by identity. The tests run once more with caches of one entry.
* Each is bounded, in entries and in bytes: by `COUNT_MAX` entries of `ENTRY_BYTES_MAX`.
* None is filled by the names of locks, of which there may be any number, and of any length.

The scripts, which are loaded once and kept for good, are no cache (`relock._scripts.load`).
"""

from typing import TypeVar

COUNT_MAX = 256
ENTRY_BYTES_MAX = 2048

K = TypeVar("K")
V = TypeVar("V")


class Cache(dict[K, V]):
    """Entries that are looked up by `get` and put in by `keep`; with one too many, all others are forgotten.

    A cache takes no lock: each step is a single operation of a dict, and an interrupt between two steps does no harm.
    If threads add entries to a full cache at once, each may exceed the bound by one entry for a moment.
    """

    __slots__ = ()

    def keep(self, key: K, value: V, size: int = 0) -> V:
        """Remember `value`, unless it is too large; return `value`.

        Args:
            key: the key by which `get` finds the value.
            value: a value that can be made again at any time.
            size: how many bytes the value takes with its key, where these may be of any length.
        """
        if size <= ENTRY_BYTES_MAX:
            if len(self) >= COUNT_MAX:
                self.clear()
            self[key] = value
        return value
