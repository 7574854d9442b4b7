"""For how long an event loop reads the subscriptions: until nobody of it waits, or somebody ends that."""

from typing import Protocol

CLAIM = "claim"


class LoopSleeper(Protocol):
    """An event loop some of whose tasks wait, as the reading sees it.

    Attributes:
        is_idle: none of them waits any more, or the loop is closed: it need not read, and perhaps does not.
    """

    @property
    def is_idle(self) -> bool:
        """See above."""

    def wake(self) -> None:
        """Has the loop look whether it is to read, and what; from any thread."""

    def forget(self) -> None:
        """In a forked child: closes the copies of the parent's sockets."""


class Term:
    """The time for which a loop has the role, from its beginning to its end.

    Whoever has claimed it may read, and may end it. The loop claims it for each message; who ends it never frees it.
    So it is ended once, and never while the loop reads; and whoever comes late to that ends no other term.

    Attributes:
        loop: whose it is.
        claim: one value at most, set by `dict.setdefault`.
    """

    __slots__ = ("claim", "loop")

    claim: dict[str, object]
    loop: LoopSleeper

    def __init__(self, loop: LoopSleeper) -> None:
        self.loop = loop
        self.claim = {}

    def try_claim(self, who: object) -> bool:
        """Claims it for `who`; False where somebody else has. In one step, which no two can take."""
        return self.claim.setdefault(CLAIM, who) is who

    def end(self) -> None:
        """Ends it for good; only who has claimed it may. The claim is its own from now on, so `free` leaves it."""
        self.claim[CLAIM] = self

    def free(self, who: object) -> None:
        """`who` reads no more; what has ended stays claimed."""
        if self.claim.get(CLAIM) is who:
            self.claim.pop(CLAIM, None)
