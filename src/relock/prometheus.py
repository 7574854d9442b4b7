"""Metrics of clients for Prometheus. Needs the extra `prometheus`, which installs prometheus_client."""

from collections.abc import Iterator

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relock._events import Event, Granted, NotGranted
from relock._metrics import BUCKETS_SECONDS, MEASURES, ROUND_TRIP, ROUND_TRIP_TEXT, outcome_of
from relock.aio_client import AsyncClient
from relock.client import Client


class RelockCollector(Collector):
    """Collector of prometheus_client: it reads the statistics of clients when it is scraped, and asks no master.

    The collector keeps its clients alive. Counts of a client begin at 0 again in a forked child. The name of a lock is
    no label, because there may be any number of names.

    Args:
        clients: the clients whose counts are added up.
    """

    def __init__(self, *clients: Client | AsyncClient) -> None:
        self._clients: list[Client | AsyncClient] = []
        self._durations = Histogram(
            _name("relock.acquire.duration", "s"),
            "Time that an outermost acquire took, by its outcome.",
            ["kind", "outcome"],
            buckets=BUCKETS_SECONDS,
            registry=None,
        )
        self._round_trips = Histogram(
            _name(ROUND_TRIP, "s"), ROUND_TRIP_TEXT, ["server_address"], buckets=BUCKETS_SECONDS, registry=None
        )
        for client in clients:
            self.add(client)

    def add(self, client: Client | AsyncClient) -> None:
        """Add a client, such as one that was made with `on_event` of this collector."""
        self._clients.append(client)
        client._session.measure(self._note_round_trip)

    def _note_round_trip(self, address: str, seconds: float) -> None:
        self._round_trips.labels(address).observe(seconds)

    def on_event(self, event: Event) -> None:
        """Note how long an acquire took: for the option ``on_event`` of a client; alone, or called by your function."""
        if isinstance(event, Granted | NotGranted):
            self._durations.labels(event.kind or "", outcome_of(event)).observe(event.waited)

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values, for the check of a registry that no two collectors share a name."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        seen = [client.statistics() for client in self._clients]
        for one in MEASURES:
            labels = [_label(attribute) for attribute in one.attributes]
            make = CounterMetricFamily if one.is_count else GaugeMetricFamily
            family = make(_name(one.name, one.unit), one.text, labels=labels)
            for values, number in one.read(seen):
                family.add_metric(values, number)
            yield family
        yield from self._durations.collect()
        yield from self._round_trips.collect()


def _name(name: str, unit: str) -> str:
    return name.replace(".", "_") + ("_seconds" if unit == "s" else "")


def _label(attribute: str) -> str:
    return attribute.removeprefix("relock.").replace(".", "_")
