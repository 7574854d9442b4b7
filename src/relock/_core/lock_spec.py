"""Requests of one lock to the masters, computed once from its options."""

import math
from typing import NamedTuple

from attrs import frozen

from relock._caches import Cache
from relock._core.quorum import drift_of, quorum_of
from relock._keys import LockKeys
from relock._options import ClientOptions, LockOptions
from relock._scripts import Prepared, load, load_all

HANDED_LEASE_SECONDS = 3.0  # the longest lease that a releaser may give; a lost message blocks the lock for so long
ALIVE_MS = 7_000  # a waiter counts as alive for this long after a heartbeat
QUEUE_MS = 30_000  # the rest of a queue without living waiters ends after this time
TOKEN_SPARE_MS = 1_000  # a master remembers a token for this much longer than the lease; as in `lua/_lib/spare.lua`
TICKET_AT_ONCE = 0  # a lone master gives a ticket, which is agreed at once
TICKET_PROPOSAL = -1  # one of several masters proposes a ticket, unwritten; -T: it writes its own or T, the larger


class CallTemplates(NamedTuple):
    """Arguments of a lock's requests, the same for all locks with the same options.

    Attributes:
        fair: 1 if a newcomer goes behind the queue, else 0.
        hand: 1 if a release gives the lock to the first waiter, 0 if it only wakes that waiter.
        grant_suffix: the end of the waiters' names: the lease that a releaser may give them; empty for none.
        taking: the request that takes the lock for one level, prepared but for the owner and a proposed token.
        acquire: the same without a proposed token, prepared but for the owner.
        enqueue: the request that takes the lock, or a place in a lone master's queue, for one level, prepared likewise.
        release: the request that ends a hold whose token a quorum gave, prepared likewise.
        extend: the request that renews a hold, prepared likewise.
    """

    lease_ms: bytes
    token_ms: bytes
    fair: bytes
    hand: bytes
    grant_suffix: bytes
    taking: Prepared
    acquire: Prepared
    enqueue: Prepared
    release: Prepared
    extend: Prepared

    def acquire_with(self, proposal: int) -> Prepared:
        """Return `acquire` with the fencing token `proposal` for all of several masters to give; 0: none."""
        return self.taking.completed(proposal) if proposal else self.acquire

    def release_with(self, fence: int, ttl: float) -> Prepared:
        """Return `release` for a lease of `ttl` (s) that writes the token `fence`; 0: a quorum knows the token."""
        return self.release.script.prepare(fence=fence, token_ms=token_ms(ttl), hand=self.hand)


Options = tuple[float, bool, bool, bool]
_templates: Cache[Options, CallTemplates] = Cache()


def _templates_for(ttl: float, fair: bool, hands_over: bool, takes_grants: bool) -> CallTemplates:
    load_all()
    lease, token, is_fair, hand = b"%d" % lease_ms(ttl), b"%d" % token_ms(ttl), b"%d" % fair, b"%d" % hands_over
    taking = load("acquire").prepare(count=1, lease_ms=lease, token_ms=token, fair=is_fair)
    queueing: dict[str, bytes | int] = {"ticket": TICKET_AT_ONCE, "alive_ms": ALIVE_MS, "queue_ms": QUEUE_MS}
    return CallTemplates(
        lease_ms=lease,
        token_ms=token,
        fair=is_fair,
        hand=hand,
        grant_suffix=b"@%d" % lease_ms(min(ttl, HANDED_LEASE_SECONDS)) if takes_grants else b"",
        taking=taking,
        acquire=taking.completed(0),
        enqueue=load("enqueue").prepare(count=1, lease_ms=lease, fair=is_fair, **queueing),
        release=load("release").prepare(fence=0, token_ms=token, hand=hand),
        extend=load("extend").prepare(lease_ms=lease, token_ms=token),
    )


@frozen(eq=False, repr=False)
class LockSpec:
    """Common part of all requests for one lock; times are seconds.

    Attributes:
        node_timeout: the longest wait for one master in one attempt.
        validity: how long a lease is safe to use, from the moment before its request was sent: the ttl less the drift.
    """

    keys: LockKeys
    masters: tuple[str, ...]
    quorum: int
    options: LockOptions
    ttl: float
    node_timeout: float
    drift_factor: float
    validity: float
    patience: float
    templates: CallTemplates

    @classmethod
    def of(cls, keys: LockKeys, masters: tuple[str, ...], options: LockOptions, client: ClientOptions) -> "LockSpec":
        """Return the spec of the lock with these keys and options."""
        hands_over = options.fair and client.handoff == "grant"
        # With `min_replicas` a grant counts only once replicas have it: the waiter asks itself, and waits for them.
        takes_grants = hands_over and not client.min_replicas
        said_by = options.ttl, options.fair, hands_over, takes_grants
        return cls(
            keys=keys,
            masters=masters,
            quorum=quorum_of(len(masters)),
            options=options,
            ttl=options.ttl,
            node_timeout=client.node_timeout_for(options.ttl),
            drift_factor=client.drift_factor,
            validity=options.ttl - drift_of(options.ttl, client.drift_factor),
            patience=client.patience,
            templates=_templates.get(said_by) or _templates.keep(said_by, _templates_for(*said_by)),
        )


@frozen(eq=False, repr=False)
class MultiSpec:
    """Common part of all requests for a multi-lock.

    Attributes:
        members: the specs of the locks, in the order of their names' bytes. All have the same options.
    """

    members: tuple[LockSpec, ...]

    @property
    def options(self) -> LockOptions:
        """Options of each member."""
        return self.members[0].options

    @property
    def masters(self) -> tuple[str, ...]:
        """Addresses of the masters."""
        return self.members[0].masters


def lease_ms(ttl: float) -> int:
    """Return a ttl in whole milliseconds, never less than asked."""
    return math.ceil(ttl * 1000)


def token_ms(ttl: float) -> int:
    """Return the whole milliseconds for which a master must remember the token of a lease of `ttl` seconds."""
    return lease_ms(ttl) + TOKEN_SPARE_MS
