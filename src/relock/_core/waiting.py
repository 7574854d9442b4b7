"""The only wait loop.

Every primitive that waits does it here: look, and if there is nothing to be had, sleep until woken or until the next
moment at which another look makes sense. What to look at is passed in, so that a primitive only decides what a look
finds. The moments, each of which bounds a sleep:

* the caller's deadline;
* the end of the holder's lease, for the head of the queue: nobody publishes when a lease runs out;
* a back-off, while too few masters answer, or while wake-ups can't be received;
* `LOOK_AGAIN_SECONDS_MAX`, for whatever nobody has thought of. The driver's sign of life comes much more often: it
  tells a waiter of its turn even when every message was lost.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple

from relock._core.effects import Ask, Clock, Effect, Listen, Park, Undo
from relock._core.flows.acquire import attempt
from relock._core.quorum import Granted, NoQuorum, Outcome, Refused
from relock._core.terms import Terms
from relock._scripts import load

LOOK_AGAIN_SECONDS_MAX = 60.0
BACKOFF_SECONDS_MIN = 0.05
BACKOFF_SECONDS_MAX = 1.0
EXPIRY_SECONDS = 0.002  # a key may be there for a moment after its lease has ended


class Wait(NamedTuple):
    """One wait for one lock.

    Attributes:
        until: the caller's deadline on the local clock; 0 or less for a single look.
        levels: the hold count to begin with.
        jitter: returns a random number from 0 to 1.
    """

    terms: Terms
    owner: bytes
    levels: int
    until: float
    clock: Clock
    jitter: Callable[[], float]


def acquire(wait: Wait) -> Generator[Effect, object, Outcome]:
    """Looks until the lock is granted, the deadline has come, or patience is over; leaves nothing behind."""
    terms, clock = wait.terms, wait.clock
    limit = max(wait.until, clock()) + terms.node_timeout
    outcome = yield from attempt(terms, wait.owner, wait.levels, clock, queue=False, until=limit)
    if isinstance(outcome, Granted):
        return outcome
    return (yield from _wait(wait, outcome, limit))


def _wait(wait: Wait, outcome: Refused | NoQuorum, limit: float) -> Generator[Effect, object, Outcome]:
    terms, clock = wait.terms, wait.clock
    listening, undecided = False, outcome.undecided
    patience = _Patience(wait)
    while True:
        now = clock()
        if now >= wait.until or patience.is_over(outcome, now):
            break
        if not listening and isinstance(outcome, Refused):
            listening = bool((yield Listen(terms.keys, wait.owner, min(wait.until, now + terms.node_timeout))))
        else:
            ticket = outcome.ticket if isinstance(outcome, Refused) else None
            look_at = min(wait.until, now + patience.pause(outcome, listening=listening))
            yield Park(terms.keys, wait.owner, ticket, _lease_end(outcome, now), look_at)
        found = yield from attempt(terms, wait.owner, wait.levels, clock, queue=listening, until=limit)
        if isinstance(found, Granted):
            return found
        outcome, undecided = found, undecided or found.undecided
    if listening or undecided:
        yield from _leave(wait, outcome, undecided=undecided)
    return outcome


def _lease_end(outcome: Refused | NoQuorum, now: float) -> float:
    """When the holder's lease ends, as far as the last look has shown; infinity for never, or not known."""
    if isinstance(outcome, Refused) and outcome.lease_left >= 0:
        return now + outcome.lease_left
    return float("inf")


def _leave(wait: Wait, outcome: Refused | NoQuorum, *, undecided: bool) -> Generator[Effect, object, None]:
    """Gives up the place in the queue: before the caller goes on if the masters answer, else in the background."""
    now = wait.clock()
    limit = now + wait.terms.node_timeout
    answers = None
    if not isinstance(outcome, NoQuorum):
        call = load("release").call(wait.terms.keys, owner=wait.owner, fence=0, lease_ms=wait.terms.lease_ms)
        answers = yield Ask((call,), min(limit, max(wait.until, now) + wait.terms.node_timeout))
    everywhere = isinstance(answers, list) and all(isinstance(answer[0], list) for answer in answers)
    if undecided or not everywhere:
        yield Undo(wait.terms.keys, wait.owner, wait.terms.ttl, limit)


class _Patience:
    """How long to go on while no quorum answers, and how long to sleep between two looks."""

    def __init__(self, wait: Wait) -> None:
        self._wait = wait
        self._silent_since: float | None = None
        self._failures = 0

    def is_over(self, outcome: Refused | NoQuorum, now: float) -> bool:
        """Whether it makes no sense to look again, whatever time is left."""
        if not isinstance(outcome, NoQuorum) or outcome.vote_in is not None:
            self._silent_since, self._failures = None, 0
            return False
        if outcome.permanent:
            return True
        self._failures += 1
        if self._silent_since is None:
            self._silent_since = now
        return now - self._silent_since >= self._wait.terms.patience

    def pause(self, outcome: Refused | NoQuorum, *, listening: bool) -> float:
        """For how many seconds to sleep before the next look, unless woken."""
        if isinstance(outcome, NoQuorum):
            if outcome.vote_in is not None:
                return max(BACKOFF_SECONDS_MIN, outcome.vote_in)
            return self._backoff(self._failures, self._patience_left())
        if isinstance(outcome, Refused) and listening:
            if outcome.ahead == 0 and outcome.lease_left >= 0:
                left = max(BACKOFF_SECONDS_MIN if outcome.holder is None else 0.0, outcome.lease_left)
                return min(left + EXPIRY_SECONDS, LOOK_AGAIN_SECONDS_MAX)
            return LOOK_AGAIN_SECONDS_MAX
        self._failures += 1
        return self._backoff(self._failures, LOOK_AGAIN_SECONDS_MAX)

    def _backoff(self, failures: int, longest: float) -> float:
        doubled: float = BACKOFF_SECONDS_MIN * 2 ** min(failures - 1, 10)
        jitter: float = 0.5 + 0.5 * self._wait.jitter()
        return min(min(doubled, BACKOFF_SECONDS_MAX) * jitter, longest)

    def _patience_left(self) -> float:
        since = self._silent_since if self._silent_since is not None else self._wait.clock()
        return max(0.001, since + self._wait.terms.patience - self._wait.clock())
