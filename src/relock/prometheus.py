"""Metrics of clients for Prometheus. Needs the extra `prometheus`, which installs prometheus_client."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relock._events import Event, Granted, NotGranted
from relock._keys import LOCK, SEMAPHORE
from relock._statistics import MasterState, Statistics
from relock.aio_client import AsyncClient
from relock.client import Client

# Of an acquire: from a grant on the same machine, up to a job that waits for another one's end.
BUCKETS_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60)
STATES = ("up", "without_vote", "down")

_COUNTERS: tuple[tuple[str, str, Callable[[Statistics], int]], ...] = (
    ("relock_grants", "Outermost acquires that got the lock.", lambda seen: seen.grants),
    ("relock_refusals", "Acquires that gave up, because another owner has the lock.", lambda seen: seen.refusals),
    ("relock_waits", "Acquires that waited.", lambda seen: seen.waits),
    ("relock_renewals", "Confirmed renewals of the watchdog.", lambda seen: seen.renewals),
    ("relock_losses", "Holds that were lost.", lambda seen: seen.losses),
    ("relock_deadlocks", "Deadlocks that were found.", lambda seen: seen.deadlocks),
    (
        "relock_callbacks_dropped",
        "Dropped calls of on_lost and on_event.",
        lambda seen: seen.callbacks_dropped,
    ),
)


class RelockCollector(Collector):
    """Collector of prometheus_client: it reads the statistics of clients when it is scraped, and asks no master.

    The collector keeps its clients alive. Counts of a client begin at 0 again in a forked child. The name of a lock is
    no label, because there may be any number of names.

    Args:
        clients: the clients whose counts are added up.
    """

    def __init__(self, *clients: Client | AsyncClient) -> None:
        self._clients = list(clients)
        self._durations = Histogram(
            "relock_acquire_duration_seconds",
            "Time that an outermost acquire took, by its outcome.",
            ["kind", "outcome"],
            buckets=BUCKETS_SECONDS,
            registry=None,
        )

    def add(self, client: Client | AsyncClient) -> None:
        """Add a client, such as one that was made with `on_event` of this collector."""
        self._clients.append(client)

    def on_event(self, event: Event) -> None:
        """Note how long an acquire took: for the option ``on_event`` of a client; alone, or called by your function."""
        if isinstance(event, Granted | NotGranted):
            outcome = "granted" if isinstance(event, Granted) else "refused"
            self._durations.labels(event.kind or "", outcome).observe(event.waited)

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values, for the check of a registry that no two collectors share a name."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        seen = [client.statistics() for client in self._clients]
        for name, text, count in _COUNTERS:
            yield CounterMetricFamily(name, text, value=sum(map(count, seen)))
        holds = [(one.held, one.held_of_semaphores) for one in seen]
        yield _by_kind("relock_hold_count", "Holds at this moment.", holds)
        waiters = [(one.waiting, one.waiting_for_semaphores) for one in seen]
        yield _by_kind("relock_waiter_count", "Waiters at this moment.", waiters)
        text = "Rest of the lease that ends first, as far as this process knows; absent without holds."
        lefts = [one.least_lease_left for one in seen if one.least_lease_left is not None]
        yield GaugeMetricFamily("relock_hold_remaining_min_seconds", text, value=min(lefts) if lefts else None)
        yield _states([master for one in seen for master in one.masters])
        yield from self._durations.collect()


def _by_kind(name: str, text: str, counts: Sequence[tuple[int, int]]) -> Metric:
    """Return a gauge of locks and one of semaphores; each of the counts is of both, and of the latter alone."""
    gauge = GaugeMetricFamily(name, text, labels=["kind"])
    of_semaphores = sum(count for _, count in counts)
    gauge.add_metric([LOCK], sum(both for both, _ in counts) - of_semaphores)
    gauge.add_metric([SEMAPHORE], of_semaphores)
    return gauge


def _states(masters: Iterable[MasterState]) -> Metric:
    """Return a gauge that is 1 for the state of each master, and 0 for the others; the worst that a client knows."""
    gauge = GaugeMetricFamily(
        "relock_master_state", "1 for the state that a master is in.", labels=["server_address", "state"]
    )
    worst: dict[str, int] = {}
    for master in masters:
        state = 2 if master.down else 1 if master.vote_in > 0 else 0
        worst[master.address] = max(state, worst.get(master.address, 0))
    for address, current in worst.items():
        for number, name in enumerate(STATES):
            gauge.add_metric([address, name], number == current)
    return gauge
