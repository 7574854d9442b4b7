"""Events of a client, and the loss of a hold: frozen values, with times in seconds."""

from enum import StrEnum
from typing import Literal

from attrs import field, fields, frozen

from relock._keys import LOCK

How = Literal["given", "woken", "polled"]


class LossCode(StrEnum):
    """Cause of a loss, for programs: it equals its own text, and later versions may add codes.

    Attributes:
        EXPIRED: the lease ended before it could be renewed.
        FORGOTTEN: the masters no longer know the hold: deleted, flushed, or released by force without a message.
        FORCED: the hold was released by force: by this client, or by another one that has told this client.
        OWNER_ENDED: the thread, task or event loop that owns the hold ended without releasing it.
        MAX_HOLD: ``max_hold`` is over.
        NOT_RENEWED: the lease ended, and was not to be renewed (``renew=False``).
        STALLED: the owner's event loop stood still for longer than ``stall_limit``.
        NOT_RETAKEN: the wait of a ``threading.Condition`` gave the hold up, and failed to take it again.
    """

    EXPIRED = "expired"
    FORGOTTEN = "forgotten"
    FORCED = "forced"
    OWNER_ENDED = "owner_ended"
    MAX_HOLD = "max_hold"
    NOT_RENEWED = "not_renewed"
    STALLED = "stalled"
    NOT_RETAKEN = "not_retaken"


@frozen
class Loss:
    """A hold that ended before its owner released it.

    Attributes:
        lock: the name of the lock.
        owner: ``<client>:<uuid>`` of the hold.
        token: the fencing token of the hold.
        hold_count: how many levels the owner had when the hold was lost.
        reason: why the hold was lost, in words.
        held_for: for how many seconds the lock was held.
        code: why the hold was lost, for programs.
        kind: ``"lock"``; ``"read"`` for a reader's hold; or ``"semaphore"`` for permits, whose semaphore `lock` then
            names.
    """

    lock: str
    owner: str
    token: int
    hold_count: int
    reason: str
    held_for: float
    code: LossCode = field(kw_only=True, repr=str)
    kind: str = field(default=LOCK, kw_only=True)


@frozen
class Event:
    """Event in a client.

    Attributes:
        lock: the name of the lock or semaphore; None if the event is about a master or an event loop.
        kind: ``"lock"``, ``"read"`` for a reader's hold, or ``"semaphore"``; None likewise.
        owner: ``<client>:<uuid>``, the name of the hold, or of the call that has none; None likewise.
        token: the fencing token of the hold; None if there is no hold.
    """

    lock: str | None
    kind: str | None = field(default=None, kw_only=True)
    owner: str | None = field(default=None, kw_only=True)
    token: int | None = field(default=None, kw_only=True)


@frozen
class Waiting(Event):
    """An outermost acquire found the lock taken, or a turn before its own, and begins to wait."""


@frozen
class Granted(Event):
    """An outermost acquire got the lock.

    Attributes:
        waited: seconds from the call to the grant.
        how: what ended the wait: ``"given"`` by a release, ``"woken"`` by a message, or ``"polled"`` by the waiter's
            own look; None if the call has not waited in the queue.
    """

    waited: float
    token: int
    how: How | None = field(default=None, kw_only=True)

    @property
    def contended(self) -> bool:
        """True if the call has waited in the queue; then `Waiting` came before."""
        return self.how is not None


@frozen
class NotGranted(Event):
    """An acquire ended without the lock after `waited` seconds.

    Attributes:
        waited: seconds; 0.0 if an exception ended the call before it began to wait.
        error: the name of the exception's class, such as ``"QuorumError"`` or ``"CancelledError"``; None if another
            owner has the lock, or a waiter's turn comes first.
    """

    waited: float
    error: str | None = field(default=None, kw_only=True)


@frozen
class Released(Event):
    """A hold of `held_for` seconds was released."""

    held_for: float


@frozen
class RenewalFailing(Event):
    """A renewal found no quorum; unless a later one does, the hold is lost in `seconds_left`."""

    seconds_left: float


@frozen
class LoopStalled(Event):
    """An event loop whose tasks hold locks has not turned for at least `seconds`; reported once for each stall.

    The holds are still renewed, unless the client has a ``stall_limit`` and that is over. An ``on_event`` of an
    `AsyncClient` is called when the loop turns again. The log and an ``on_event`` of a `Client` get it at once.
    """

    seconds: float


@frozen
class Lost(Event):
    """A hold was lost, for `reason`; `code` says the same to programs."""

    reason: str
    code: LossCode = field(kw_only=True, repr=str)


@frozen
class ForceReleased(Event):
    """This client has ended by force what was held: of a lock, whichever owner had it, or the permits of `owner`.

    `owner` is None for a lock.
    """


@frozen
class Deadlocked(Event):
    """Callers wait for each other; reported once by each client that has a part in it and finds it.

    Attributes:
        cycle: as in a `DeadlockError`.
        victim: the waiting owner that is to get a `DeadlockError`; None if none is.
    """

    cycle: tuple[tuple[str, str, str], ...]
    victim: str | None


@frozen
class LongWait(Event):
    """A caller has waited for a lock for longer than the client's ``long_wait``; at most once a minute for each lock.

    Attributes:
        owner: the name of the call that waits.
        holder: the owner that has the lock, or the first of the readers that have it; None if the lock is free, or
            another library's.
        ahead: how many waiters come first.
        seconds: how long the caller has waited.
    """

    owner: str
    holder: str | None
    ahead: int
    seconds: float


@frozen
class ReleaseUnconfirmed(Event):
    """Fewer than a quorum confirmed a release; the lease runs out by itself, in `seconds_left` at the latest."""

    seconds_left: float


@frozen
class MasterDown(Event):
    """A master does not answer, for the reason `why`."""

    master: str
    why: str


@frozen
class MasterBack(Event):
    """A master answers again."""

    master: str


@frozen
class MasterWithoutVote(Event):
    """A master may have forgotten leases, for the reason `why`, and has no vote for `seconds_left`."""

    master: str
    seconds_left: float
    why: str


def fields_of(event: Event) -> dict[str, object]:
    """Return an event as a log record has it: the name of its class, and its fields except those that are None."""
    told: dict[str, object] = {"event": type(event).__name__}
    for one in fields(type(event)):
        value = getattr(event, one.name)
        if value is not None:
            told[one.name] = value
    return told
