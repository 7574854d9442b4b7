"""A sorted set, in the order in which Redis keeps it."""

from bisect import bisect_left, insort

from relock.testing._arguments import as_text


class SortedSet:
    """Members in the order of their scores, and those of one score in the order of their bytes."""

    __slots__ = ("order", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def put(self, member: bytes, score: float) -> None:
        """Add a member, or move it."""
        if member in self.scores:
            self.remove(member)
        self.scores[member] = score
        insort(self.order, (score, member))

    def remove(self, member: bytes) -> bool:
        """Remove a member; return whether it was there."""
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.order[bisect_left(self.order, (score, member))]
        return True

    def rank(self, member: bytes) -> int | None:
        """Return how many members come before this one; None if it is not there."""
        score = self.scores.get(member)
        return None if score is None else bisect_left(self.order, (score, member))

    def copy(self) -> "SortedSet":
        """Return a new set with the same members."""
        copied = SortedSet()
        copied.scores = dict(self.scores)
        copied.order = list(self.order)
        return copied


def listed(found: list[tuple[float, bytes]], with_scores: bool) -> tuple[bytes, ...]:
    """Return members as a command replies them, `with_scores` each followed by its score."""
    if not with_scores:
        return tuple([member for _, member in found])
    return tuple([item for score, member in found for item in (member, as_text(score))])
