"""Metrics of clients: their names, units and values, for Prometheus and for OpenTelemetry."""

from collections.abc import Callable, Iterable, Sequence

from attrs import frozen

from relock._events import Granted, NotGranted
from relock._keys import LOCK, SEMAPHORE
from relock._statistics import Statistics

ROUND_TRIP = "relock.master.roundtrip.duration"
ROUND_TRIP_TEXT = "Time from a request to the master's reply; a sample, at most ten a second."
# Of an acquire: from a grant on the same machine, up to a job that waits for another one's end.
BUCKETS_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60)
STATES = ("up", "without_vote", "down")

Seen = Sequence[Statistics]
Point = tuple[tuple[str, ...], float]


@frozen
class Measure:
    """Metric that is read from the statistics of clients.

    Attributes:
        name: the name for OpenTelemetry; that for Prometheus is made of it.
        unit: as UCUM writes it.
        text: the description.
        read: returns the points: the values of the attributes, and the number.
        is_count: True if the number never falls.
        attributes: the names of the attributes.
    """

    name: str
    unit: str
    text: str
    read: Callable[[Seen], Iterable[Point]]
    is_count: bool = False
    attributes: tuple[str, ...] = ()


def outcome_of(event: Granted | NotGranted) -> str:
    """Return how an acquire ended: ``"granted"``, ``"refused"``, or ``"failed"`` if it ended with an exception."""
    if isinstance(event, Granted):
        return "granted"
    return "refused" if event.error is None else "failed"


def _count(name: str, unit: str, text: str, of: Callable[[Statistics], int]) -> Measure:
    return Measure(f"relock.{name}", unit, text, lambda seen: [((), sum(map(of, seen)))], is_count=True)


def _by_kind(all_kinds: Iterable[int], of_semaphores: Iterable[int]) -> list[Point]:
    permits = sum(of_semaphores)
    return [((LOCK,), sum(all_kinds) - permits), ((SEMAPHORE,), permits)]


def _handovers(seen: Seen) -> list[Point]:
    given, woken = sum(one.handovers for one in seen), sum(one.woken_grants for one in seen)
    return [(("given",), given), (("woken",), woken), (("polled",), sum(one.polled_grants for one in seen))]


def _least(seen: Seen) -> list[Point]:
    lefts = [one.least_lease_left for one in seen if one.least_lease_left is not None]
    return [((), min(lefts))] if lefts else []


def _states(seen: Seen) -> list[Point]:
    """Return 1 for the state of each master, and 0 for the others; of several clients, the worst that one knows."""
    worst: dict[str, int] = {}
    for master in (master for one in seen for master in one.masters):
        state = 2 if master.down else 1 if master.vote_in > 0 else 0
        worst[master.address] = max(state, worst.get(master.address, 0))
    return [((address, name), STATES[now] == name) for address, now in worst.items() for name in STATES]


LOSSES = _count("losses", "{hold}", "Holds that were lost.", lambda one: one.losses)
MEASURES = (
    _count("grants", "{acquire}", "Outermost acquires that got the lock.", lambda one: one.grants),
    _count(
        "refusals", "{acquire}", "Acquires that gave up, because another owner has the lock.", lambda one: one.refusals
    ),
    _count("waits", "{acquire}", "Acquires that waited.", lambda one: one.waits),
    Measure(
        "relock.handovers",
        "{handover}",
        "Grants to acquires that have waited, by what ended the wait.",
        _handovers,
        is_count=True,
        attributes=("relock.how",),
    ),
    _count("renewals", "{renewal}", "Confirmed renewals of the watchdog.", lambda one: one.renewals),
    LOSSES,
    _count("deadlocks", "{deadlock}", "Deadlocks that were found.", lambda one: one.deadlocks),
    _count("undos", "{undo}", "Unwanted holds and places that were ended on every master.", lambda one: one.undos),
    _count("clock.steps", "{step}", "Steps of a master's clock against this machine's.", lambda one: one.clock_steps),
    _count("callbacks.dropped", "{call}", "Dropped calls of on_lost and on_event.", lambda one: one.callbacks_dropped),
    Measure(
        "relock.hold.count",
        "{hold}",
        "Holds at this moment.",
        lambda seen: _by_kind((one.held for one in seen), (one.held_of_semaphores for one in seen)),
        attributes=("relock.kind",),
    ),
    Measure(
        "relock.waiter.count",
        "{waiter}",
        "Waiters at this moment.",
        lambda seen: _by_kind((one.waiting for one in seen), (one.waiting_for_semaphores for one in seen)),
        attributes=("relock.kind",),
    ),
    Measure(
        "relock.hold.remaining.min",
        "s",
        "Rest of the lease that ends first, as far as this process knows; absent without holds.",
        _least,
    ),
    Measure(
        "relock.master.state",
        "1",
        "1 for the state that a master is in.",
        _states,
        attributes=("server.address", "relock.state"),
    ),
)
