"""Weak set of objects that one thread may iterate while others add and drop some.

`weakref.WeakSet` is written in Python. If another thread drops one object and adds another during its iteration, the
iteration may silently skip a third one.
"""

from collections.abc import Iterator
from itertools import count
from operator import attrgetter
from typing import Generic, TypeVar
from weakref import ref

T = TypeVar("T")
_numbers = count()
_number_of = attrgetter("number")


class _Reference(ref[T]):
    """Weak reference with the number of its addition: a set has the order of addresses, which no run repeats."""

    __slots__ = ("number",)
    number: int


class LiveSet(Generic[T]):
    """Set of objects that does not keep them alive. Each step is one operation of a set of references."""

    def __init__(self) -> None:
        self._references: set[_Reference[T]] = set()

    def add(self, one: T) -> None:
        """Add an object, until it dies or is discarded."""
        reference = _Reference(one, self._references.discard)
        reference.number = next(_numbers)
        self._references.add(reference)

    def discard(self, one: T) -> None:
        """Remove an object, if it is in the set."""
        self._references.discard(_Reference(one))

    def __iter__(self) -> Iterator[T]:
        """Yield the objects that are alive now, in the order of their addition; keep each alive during its turn."""
        for reference in sorted(list(self._references), key=_number_of):  # noqa: C414  # the copy is one operation
            one = reference()
            if one is not None:
                yield one

    def __len__(self) -> int:
        return len(self._references)
