"""Counts of a client, and the state of its masters, for `Client.statistics`."""

from attrs import frozen

from relock._keys import SEMAPHORE
from relock._runtime.masters.master import Master
from relock._runtime.session.session import Session


@frozen
class MasterState:
    """State of one master, as a client knows it.

    Attributes:
        address: URL of the master, without a password.
        version: the server's version, once connected.
        down: why the master does not answer, or None.
        vote_in: seconds until the master has a vote again; 0.0 if the master has one, as far as this client knows.
        problems: faults of the master, in words.
        connections: open connections of this client, also those of event loops, without subscriptions.
        idle_connections: how many of these are not in use.
    """

    address: str
    version: str
    down: str | None
    vote_in: float
    problems: tuple[str, ...]
    connections: int
    idle_connections: int


@frozen
class Statistics:
    """Counts of one client since it was made (or forked), and the state of its masters.

    A permit of a semaphore, or several that were taken at once, counts as a hold.

    Attributes:
        grants: outermost acquires that got the lock.
        refusals: acquires that gave up because another owner has the lock, or a waiter's turn comes first.
        waits: acquires that waited.
        handovers: holds that a releaser gave to a waiter, without a further request of the waiter's.
        woken_grants: grants that a waiter asked for when a master's message had woken it.
        polled_grants: grants that a waiter found without a message, by a heartbeat or by a look of its own.
        renewals: confirmed renewals of the watchdog.
        losses: holds that were lost.
        deadlocks: deadlocks that this client has found.
        undos: holds and places in queues that nobody wanted any more, and whose end every master has confirmed.
        clock_steps: how often the clock of a master and that of this machine moved apart at once.
        callbacks_dropped: calls of ``on_lost`` and ``on_event`` that were dropped, because one before them hangs.
        records_dropped: log records of all clients of this process that were dropped in the same way.
        held: holds at this moment.
        waiting: waiters at this moment.
        held_of_semaphores: how many of the holds are of semaphores.
        waiting_for_semaphores: how many of the waiters wait for permits.
        least_lease_left: seconds until the first lease of the holds ends, if it is not renewed; None without holds.
        masters: state of each master.
    """

    grants: int
    refusals: int
    waits: int
    handovers: int
    woken_grants: int
    polled_grants: int
    renewals: int
    losses: int
    deadlocks: int
    undos: int
    clock_steps: int
    callbacks_dropped: int
    records_dropped: int
    held: int
    waiting: int
    held_of_semaphores: int
    waiting_for_semaphores: int
    least_lease_left: float | None
    masters: tuple[MasterState, ...]


def statistics_of(session: Session) -> Statistics:
    """Return the counts so far, and the state of each master; no I/O."""
    counters = session.counters
    now = session.clock()
    holds = [hold for hold in session.holds.copy().values() if hold.loss is None]
    held = [hold.keys.kind for hold in holds]
    waiting = [waiter.keys.kind for waiter in session.hubs.waiters()]
    return Statistics(
        grants=counters.grants,
        refusals=counters.refusals,
        waits=counters.waits,
        handovers=counters.handovers,
        woken_grants=counters.woken_grants,
        polled_grants=counters.polled_grants,
        renewals=counters.renewals,
        losses=counters.losses,
        deadlocks=counters.deadlocks,
        undos=counters.undos,
        clock_steps=counters.clock_steps,
        callbacks_dropped=session.losses.dropped + session.events.dropped,
        records_dropped=session.platform.log.dropped,
        held=len(held),
        waiting=len(waiting),
        held_of_semaphores=held.count(SEMAPHORE),
        waiting_for_semaphores=waiting.count(SEMAPHORE),
        least_lease_left=min((hold.remaining(now) for hold in holds), default=None),
        masters=tuple(_state_of(master, now) for master in session.masters),
    )


def _state_of(master: Master, now: float) -> MasterState:
    facts, pools = master.facts, [server.pool for server in master.servers]
    of_calls = sum(pool.connections for pool in pools)
    return MasterState(
        address=facts.address,
        version=facts.version,
        down=facts.down,
        vote_in=max(0.0, facts.vote_at - now),
        problems=tuple(facts.problems.values()),
        connections=of_calls + sum(pool.loop_connections for pool in pools),
        idle_connections=min(sum(pool.idle_connections for pool in pools), of_calls),
    )
