"""Terms of event loops that read the subscriptions: each lasts until no task of the loop waits, or a thread ends it."""

from typing import Protocol

CLAIM = "claim"


class LoopSleeper(Protocol):
    """Event loop some of whose tasks wait, as `Reading` sees it.

    Attributes:
        is_idle: no task of it waits any more, or the loop is closed: it need not read, and perhaps does not.
    """

    @property
    def is_idle(self) -> bool:
        """True if no task of the loop waits any more, or the loop is closed."""

    def wake(self) -> None:
        """Have the loop look whether it is to read, and what; any thread may call this."""

    def forget(self) -> None:
        """Close the copies of the parent's sockets, in a forked child."""


class Term:
    """Term of an event loop: the time for which the loop is the leader.

    Only the claimant of a term may read in it, and may end it. The loop claims its term for each message; a thread that
    ends a term never frees it. So a term is ended once, and never while the loop reads; a thread that comes too late to
    end it ends no other term.

    Attributes:
        loop: the loop that leads.
        claim: one value at most, the claimant, set by `dict.setdefault`.
    """

    __slots__ = ("claim", "loop")

    claim: dict[str, object]
    loop: LoopSleeper

    def __init__(self, loop: LoopSleeper) -> None:
        self.loop = loop
        self.claim = {}

    def try_claim(self, who: object) -> bool:
        """Claim the term for `who`, in one step that no two threads can take; return False if it is claimed already."""
        return self.claim.setdefault(CLAIM, who) is who

    def end(self) -> None:
        """End the term for good, as its claimant alone may; the term claims itself from now on, so `free` leaves it."""
        self.claim[CLAIM] = self

    def free(self, who: object) -> None:
        """Give up the claim of `who`, which reads no more; a term that has ended stays claimed."""
        if self.claim.get(CLAIM) is who:
            self.claim.pop(CLAIM, None)
