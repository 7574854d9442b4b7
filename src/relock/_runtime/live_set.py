"""Weak set of objects that one thread may iterate while others add and drop some.

`weakref.WeakSet` is written in Python. If another thread drops one object and adds another during its iteration, the
iteration may silently skip a third one.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class LiveSet(Generic[T]):
    """Set of objects that does not keep them alive. Each step is one operation of a set of references."""

    def __init__(self) -> None:
        self._references: set[ref[T]] = set()

    def add(self, one: T) -> None:
        """Add an object, until it dies or is discarded."""
        self._references.add(ref(one, self._references.discard))

    def discard(self, one: T) -> None:
        """Remove an object, if it is in the set."""
        self._references.discard(ref(one))

    def __iter__(self) -> Iterator[T]:
        """Yield the objects that are alive at this moment, and keep each one alive until its turn is over."""
        for reference in list(self._references):
            one = reference()
            if one is not None:
                yield one

    def __len__(self) -> int:
        return len(self._references)
