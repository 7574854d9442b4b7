"""What is remembered only to save time.

Every cache of relock is a `Cache`, and three rules hold for each.

* Nothing depends on one. What was forgotten is made again, and is as good: values are compared as values, never by
  identity. The tests run once more with caches of one entry.
* Each is bounded, in entries and in bytes: by `COUNT_MAX` entries of `ENTRY_BYTES_MAX`.
* None is filled by the names of locks, of which there may be any number, and of any length.

What is loaded once and kept for good is no cache: the scripts (`relock._scripts.load`).
"""

from typing import TypeVar

COUNT_MAX = 256
ENTRY_BYTES_MAX = 2048

K = TypeVar("K")
V = TypeVar("V")


class Cache(dict[K, V]):
    """Entries that are looked up by `get` and put in by `keep`; with one too many, all others are forgotten.

    It takes no lock: each step is a single operation of a dict, and an interrupt between two leaves it as usable as
    before. Threads that add to a full one at the same moment may exceed its bound by one entry each, until the next.
    """

    __slots__ = ()

    def keep(self, key: K, value: V, size: int = 0) -> V:
        """Remembers `value`, unless it is too large; returns it.

        Args:
            key: what `get` finds it by.
            value: what can be made again at any time.
            size: how many bytes it takes with its key, where these may be of any length.
        """
        if size <= ENTRY_BYTES_MAX:
            if len(self) >= COUNT_MAX:
                self.clear()
            self[key] = value
        return value
