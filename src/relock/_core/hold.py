"""One hold: what this client knows of it. Pure state; the clock is passed in.

Safety rests on `Hold.deadline` alone: it is data, compared at every use. A watchdog that sleeps too long costs a
hold, never exclusion.
"""

from collections.abc import Callable, Sequence

from attrs import define, field

from relock._core.effects import Failure, Reply
from relock._core.quorum import NEVER, deadline_of, is_status
from relock._events import Loss
from relock._keys import LockKeys
from relock._owner import OwnerKey, ThreadRef

EXPIRED = "its lease ended before it could be renewed"
NOT_RENEWED = "its lease ended, and it was not to be renewed (renew=False)"
FORGOTTEN = "the masters no longer know it: deleted, released by force, flushed, or expired there"
MAX_HOLD = "max_hold is over, and with it the last lease"
OWNER_ENDED = "its owner thread ended without releasing it"

RENEW_PART = 3  # a lease is renewed after a third of it
RETRY_PART = 10  # and a renewal that failed is tried again after a tenth
AHEAD_PART = 30  # one that is due this soon joins the batch of another


@define(eq=False)
class Hold:
    """A hold of one owner, from its grant to its end.

    Attributes:
        owner: ``<client>:<uuid>`` on the masters.
        key: who may use it, locally.
        thread: the owner thread, or None where ``owner=`` names the owner.
        ttl: seconds; later renewals ask for this lease.
        settled: every master knows the token, so the release need not write it back.
        ends: until when each master surely keeps the lease.
        count: the hold count.
        renew_at: when the watchdog is to renew it; infinity for never (again).
        renew_until: when ``max_hold`` is over.
        loss: set once, when it was lost.
    """

    keys: LockKeys
    owner: bytes
    key: OwnerKey
    thread: ThreadRef | None
    ttl: float
    drift_factor: float
    quorum: int
    token: int
    settled: bool
    ends: list[float]
    count: int
    granted_at: float
    renew: bool
    renew_at: float
    renew_until: float
    callbacks: list[Callable[[Loss], object]]
    deadline: float = 0.0
    loss: Loss | None = None
    _unsaid: list[bool] = field(factory=lambda: [True])

    def __attrs_post_init__(self) -> None:
        self.deadline = deadline_of(self.ends, self.quorum)

    @property
    def fence(self) -> int:
        """The token that the release is to write back; 0 where no master can miss it."""
        return 0 if self.settled else self.token

    def remaining(self, now: float) -> float:
        """Seconds for which the hold is surely still valid."""
        return 0.0 if self.loss else max(0.0, self.deadline - now)

    def reason_for_loss(self, now: float) -> str | None:
        """Why this hold is lost now, or None while it is valid."""
        if now < self.deadline:
            return None
        if self.deadline == NEVER:
            return FORGOTTEN
        if self.thread is not None and self.thread() is None:
            return OWNER_ENDED
        if now >= self.renew_until:
            return MAX_HOLD
        return EXPIRED if self.renew else NOT_RENEWED

    def lose(self, reason: str, now: float) -> Loss | None:
        """Marks the hold as lost. Returns the loss to be told to the first caller only, so that it is said once."""
        try:
            self._unsaid.pop()  # atomic: of two threads that find the loss, one says it
        except IndexError:
            return None
        owner = self.owner.decode()
        self.loss = Loss(self.keys.name, owner, self.token, self.count, reason, now - self.granted_at)
        self.renew_at = float("inf")
        return self.loss

    def wants_renewal(self, now: float) -> bool:
        """Whether the watchdog should renew it by now, or so soon that it may as well join this batch."""
        if self.loss is not None or now >= self.renew_until:
            return False
        if self.thread is not None and self.thread() is None:
            return False
        return now >= self.renew_at - self.ttl / AHEAD_PART

    def count_renewal(self, answers: Sequence[Reply | Failure], sent_at: float, end: float, now: float) -> bool:
        """Counts the answers to a renewal whose leases last until `end`.

        Returns whether a quorum confirmed it. A reply that is processed after the old deadline counts for nothing:
        the hold is lost by then, and stays so.
        """
        self.drop_absent(answers)
        if now >= self.deadline:
            return False
        extended = [is_status(answer, b"extended") for answer in answers]
        for i, yes in enumerate(extended):
            if yes:
                self.ends[i] = max(self.ends[i], end)
        self.deadline = deadline_of(self.ends, self.quorum)
        if sum(extended) >= self.quorum:
            self.renew_at = sent_at + self.ttl / RENEW_PART if self.renew else float("inf")
            return True
        self.retry_renewal(now)
        return False

    def retry_renewal(self, now: float) -> None:
        """The renewal failed: the next one comes sooner than it would have."""
        self.renew_at = now + self.ttl / RETRY_PART if self.renew else float("inf")

    def drop_absent(self, answers: Sequence[Reply | Failure]) -> None:
        """A master that says the hold is not there counts no more; silence changes nothing."""
        for i, answer in enumerate(answers):
            if is_status(answer, b"absent"):
                self.ends[i] = NEVER
        self.deadline = deadline_of(self.ends, self.quorum)

    def shift(self, master: int, seconds: float) -> None:
        """The clock of a master ran ahead by `seconds` all at once: its lease ends that much earlier."""
        self.ends[master] -= seconds
        self.deadline = deadline_of(self.ends, self.quorum)
