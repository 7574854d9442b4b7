"""Leftovers of ended holds and attempts, on masters and in processes: there must be none."""

from collections.abc import Collection, Iterator, Sequence

from relock._core.quorum import quorum_of
from relock._keys import LockKeys, PermitKeys, lock_keys
from relock._owner import READ_MARK, client_name, stem_of, waiter_name
from relock._runtime.session.session import Session
from relock.testing._process import Process
from relock.testing._server import Server
from sim.beliefs import Belief
from sim.plan import LOCK

MASTER_KEY = b"lock:master"


LOCK_KEYS = lock_keys("lock", LOCK)
LOCK_KEY = LOCK_KEYS.lock


def holds_on(server: Server, keys: LockKeys) -> dict[bytes, float]:
    """Return the owners that have the lock, or permits, on a master, and how long (s) their leases last there."""
    found: Collection[bytes] = server.master.contents(keys.lock) or ()
    left = {}
    if not isinstance(keys, PermitKeys):
        seconds = server.master.read("PTTL", keys.lock) / 1000
        left = {owner: seconds for owner in found if READ_MARK not in owner}
        if len(left) == len(found):
            return left
    now_ms, ends = server.clock_us() // 1000, dict(server.master.contents(keys.leases) or ())
    return left | {owner: (ends[owner] - now_ms) / 1000 for owner in found if ends.get(owner, 0) > now_ms}


def is_of(session: Session, owner: bytes) -> bool:
    """Return whether an owner belongs to that client: to its threads, or to one of its loops."""
    return f"{client_name(owner).decode()}.".startswith(f"{session.client_id}.")


def undone(
    servers: Sequence[Server], sessions: Sequence[tuple[Process, Session]], keys: LockKeys = LOCK_KEYS
) -> Iterator[str]:
    """Yield the leftovers of attempts when all threads have released a lock, and leases have not ended yet."""
    for server in servers:
        found = holds_on(server, keys)
        queue = [waiter for waiter, _ in server.master.contents(keys.queue) or []]
        dead = [session for process, session in sessions if process.is_dead]
        left = [owner for owner in [*found, *queue] if not any(is_of(session, owner) for session in dead)]
        if left:
            yield f"{server.name} still has {left} of those who live"
    for process, session in sessions:
        held = [hold for hold in session.holds.copy().values() if hold.keys.lock == keys.lock and hold.loss is None]
        if not process.is_dead and (held or session.hubs.waiters()):
            yield f"{process.name} has or awaits something for nobody"


def of_client(
    servers: Sequence[Server], process: Process, session: Session, kept: set[bytes], keys: LockKeys = LOCK_KEYS
) -> Iterator[str]:
    """Yield the leftovers of a closed client on reachable masters; `kept` names holds that were not released.

    A slow master may give the waiter of such a hold a place instead, which goes with the release of the hold.
    """
    kept = kept | {waiter_name(hold) for hold in kept}
    for server in servers:
        if not server.is_up or server.is_stopped or process.name in server.unreachable:
            continue
        queue = [waiter for waiter, _ in server.master.contents(keys.queue) or []]
        found = [*holds_on(server, keys), *queue]
        left = [one for one in found if is_of(session, one) and one not in kept]
        if left:
            yield f"{server.name} still has {left} of {process.name}, whose client is closed"


def released(servers: Sequence[Server], belief: Belief) -> Iterator[str]:
    """Yield the masters that still have a hold which its owner has released."""
    for server in servers:
        if belief.hold.owner in holds_on(server, belief.hold.keys):
            yield f"{server.name} has a hold that {belief.process.name} has released"


def miscounted(servers: Sequence[Server], belief: Belief, levels: int) -> Iterator[str]:
    """Yield a text if fewer than a quorum of the masters have this count of a hold and its note, or a permit's slot."""
    hold = belief.hold
    counts = [server.master.contents(hold.keys.lock) for server in servers]
    if isinstance(hold.keys, PermitKeys):
        kept = b"%d" % (hold.kept if hold.kept >= 0 else -belief.lock.permits)
        right = sum(isinstance(found, dict) and found.get(hold.owner) == kept for found in counts)
    else:
        note, values = hold.spec.options.note, [b"%d" % levels]
        if note is not None:
            values.append(b"%b %b" % (values[0], note.encode()))
            if hold.untold_note is None:  # else the releaser that gave it did not know the note
                del values[0]
        right = sum(isinstance(found, dict) and _counts(found, hold.owner, values) for found in counts)
    if right < quorum_of(len(servers)):
        yield f"{belief.process.name} has {levels} levels, but the masters say {counts}"


def _counts(found: dict[bytes, bytes], owner: bytes, values: Collection[bytes]) -> bool:
    """Return whether a master has one of these values for an owner, and no other owner that may not be beside it."""
    others = [one for one in found if one != owner and not may_be_beside(one, owner)]
    return found.get(owner) in values and not others


def may_be_beside(one: bytes, other: bytes) -> bool:
    """Return whether two names may have the lock together: both are readers', or of one owner that reads and writes."""
    if READ_MARK in one and READ_MARK in other:
        return True
    writer, reader = sorted((one, other), key=lambda name: READ_MARK in name)
    beside = waiter_name(reader).partition(READ_MARK)[2]
    return client_name(writer) == client_name(reader) and beside == stem_of(writer)


def given_to(
    process: Process,
    servers: Sequence[Server],
    sessions: Sequence[tuple[Process, Session]],
    keys: LockKeys = LOCK_KEYS,
) -> list[float]:
    """Return how long (s) the holds of a process's clients last on the masters, also unknown holds."""
    own = [session for one, session in sessions if one is process]
    found = [held for server in servers for held in holds_on(server, keys).items()]
    return [left for owner, left in found if any(is_of(session, owner) for session in own)]


def voteless(servers: Sequence[Server]) -> Iterator[str]:
    """Yield the masters that have no vote."""
    for server in servers:
        until_us = int(server.master.read("HGET", MASTER_KEY, b"no_vote_until_us") or 0)
        if until_us > server.clock_us():
            yield f"{server.name} has no vote for {(until_us - server.clock_us()) / 1e6:.1f} s"


def in_the_end(servers: Sequence[Server]) -> Iterator[str]:
    """Yield the leftovers on masters when every lease is over."""
    for server in servers:
        keys = server.master.keys()
        left = [key for key in keys if not key.endswith((b":token", b"master"))]
        if left:
            yield f"{server.name} still has {left}"
