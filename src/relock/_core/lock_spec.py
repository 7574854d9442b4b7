"""Requests of one lock to the masters, computed once from its options."""

import math
from collections.abc import Callable
from typing import NamedTuple

from attrs import frozen

from relock._caches import Cache
from relock._core.quorum import drift_of, quorum_of
from relock._keys import LockKeys, ReadKeys, RedissonKeys
from relock._options import ClientOptions, LockOptions
from relock._owner import READ_MARK
from relock._scripts import Prepared, load, load_all

HANDED_LEASE_SECONDS = 3.0  # the longest lease that a releaser may give; a lost message blocks the lock for so long
ALIVE_MS = 7_000  # a waiter counts as alive for this long after a heartbeat
QUEUE_MS = 30_000  # the rest of a queue without living waiters ends after this time
TOKEN_SPARE_MS = 1_000  # a master remembers a token for this much longer than the lease; as in `lua/_lib/spare.lua`
TICKET_AT_ONCE = 0  # a lone master gives a ticket, which is agreed at once
ANY_SLOT = -1  # a lone master gives the lowest free slot of a semaphore; also for several permits, which have none
TICKET_PROPOSAL = -1  # one of several masters proposes a ticket, unwritten; -T: it writes its own or T, the larger


class Wish(NamedTuple):
    """Permits that one call asks of a semaphore, and the semaphore's limit."""

    permits: int
    limit: int


class CallTemplates(NamedTuple):
    """Arguments of a lock's requests, the same for all locks with the same options.

    Attributes:
        fair: 1 if a newcomer goes behind the queue, else 0.
        hand: 1 if a release gives the lock to the first waiter, 0 if it only wakes that waiter.
        mark: the end of the waiters' names: what a waiter for permits asks for, or that it is a reader.
        grant_mark: the same, with the lease that a releaser may give such a waiter, if any.
        kept: the name of the argument that the masters keep for an owner: ``count``, or ``slot``.
        usual: the value of this argument in the prepared requests; with a note, see `noted`.
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
    mark: bytes
    grant_mark: bytes
    kept: str
    usual: int | bytes
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


Options = tuple[type[LockKeys], bytes, float, bool, bool, bool, str | None]
_templates: Cache[Options, CallTemplates] = Cache()


def _templates_for(script_name: Callable[[str], str], options: Options) -> CallTemplates:
    _, mark, ttl, fair, hands_over, takes_grants, note = options
    load_all()
    lease, token, is_fair, hand = b"%d" % lease_ms(ttl), b"%d" % token_ms(ttl), b"%d" % fair, b"%d" % hands_over
    kept, usual = ("slot", ANY_SLOT) if b"/" in mark else ("count", noted(1, note))
    taking = load(script_name("acquire")).prepare(**{kept: usual}, lease_ms=lease, token_ms=token, fair=is_fair)
    queueing: dict[str, bytes | int] = {"ticket": TICKET_AT_ONCE, "alive_ms": ALIVE_MS, "queue_ms": QUEUE_MS}
    return CallTemplates(
        lease_ms=lease,
        token_ms=token,
        fair=is_fair,
        hand=hand,
        mark=mark,
        grant_mark=b"%b@%d" % (mark, lease_ms(min(ttl, HANDED_LEASE_SECONDS))) if takes_grants else mark,
        kept=kept,
        usual=usual,
        taking=taking,
        acquire=taking.completed(0),
        enqueue=load(script_name("enqueue")).prepare(**{kept: usual}, lease_ms=lease, fair=is_fair, **queueing),
        release=load(script_name("release")).prepare(fence=0, token_ms=token, hand=hand),
        extend=load(script_name("extend")).prepare(lease_ms=lease, token_ms=token),
    )


@frozen(eq=False, repr=False)
class LockSpec:
    """Common part of all requests for one lock, or for permits of one semaphore; times are seconds.

    Attributes:
        slots: how many slots there are, of which each request must name one; None if it need not.
        is_shared: the hold is a reader's, which other readers may have at the same time.
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
    slots: int | None = None
    is_shared: bool = False

    @classmethod
    def of(
        cls,
        keys: LockKeys,
        masters: tuple[str, ...],
        options: LockOptions,
        client: ClientOptions,
        wish: Wish | None = None,
    ) -> "LockSpec":
        """Return the spec of the lock with these keys and options, or of what a caller wishes of a semaphore."""
        hands_over = options.fair and client.handoff == "grant"
        # With `min_replicas` a grant counts only once replicas have it: the waiter asks itself, and waits for them.
        takes_grants = hands_over and not client.min_replicas
        mark, is_shared = b"", keys.__class__ is ReadKeys
        if wish is not None:
            mark, takes_grants = b"#%d/%d" % wish, takes_grants and wish.permits == 1
        elif is_shared:
            # A reader is woken, not given a hold. After the last of several readers, which is another one on each
            # master, the name of a hold that is given would differ as well.
            mark, takes_grants, hands_over = READ_MARK, False, hands_over and len(masters) == 1
        if client.redisson and keys.__class__ is LockKeys:
            keys = RedissonKeys(*keys)
        said_by = keys.__class__, mark, options.ttl, options.fair, hands_over, takes_grants, options.note
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
            templates=_templates.get(said_by) or _templates.keep(said_by, _templates_for(keys.script_name, said_by)),
            slots=wish.limit if wish is not None and len(masters) > 1 else None,
            is_shared=is_shared,
        )

    def value_of(self, count: int) -> int | bytes:
        """Return what the masters keep for an owner with so many levels."""
        return noted(count, self.options.note)

    def for_readers(self, client: ClientOptions) -> "LockSpec":
        """Return the spec of the readers of the same lock, with the same options."""
        return LockSpec.of(ReadKeys(*self.keys), self.masters, self.options, client)


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


def rest_request(left: float, fence: int, ttl: float) -> Prepared:
    """Return the request that ends a hold of `ttl` seconds, and has the lock rest for the `left` seconds."""
    return load("rest").prepare(rest_ms=lease_ms(left), fence=fence, token_ms=token_ms(max(left, ttl)))


def noted(count: int, note: str | None) -> int | bytes:
    """Return the value of a hold's field on the masters: the hold count; with a note, a blank and the note behind it.

    So a note has the lease of its hold, and ends with it, whatever ends it.
    """
    return count if note is None else b"%d %b" % (count, note.encode())


def lease_ms(ttl: float) -> int:
    """Return a ttl in whole milliseconds, never less than asked."""
    return math.ceil(ttl * 1000)


def token_ms(ttl: float) -> int:
    """Return the whole milliseconds for which a master must remember the token of a lease of `ttl` seconds."""
    return lease_ms(ttl) + TOKEN_SPARE_MS
